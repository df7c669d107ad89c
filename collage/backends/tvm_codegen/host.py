"""The machine as TVM sees it: the CPU that code is compiled for, and the threads that it runs on."""

from __future__ import annotations

import functools
import os
import platform
import re
from pathlib import Path
from typing import Any

import tvm
from tvm.target import codegen

from collage.native.kernel_library import leaves_out_avx512


@functools.cache
def host_cpu() -> str:
    """LLVM's name for this CPU, or the highest x86-64 level its flags allow."""
    if leaves_out_avx512():
        return "x86-64-v3"
    name = str(codegen.llvm_get_system_cpu())
    if name not in ("", "generic", "x86-64") or platform.machine() not in ("x86_64", "AMD64"):
        return name or "generic"
    try:
        flags = set(re.findall(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.M)[0].split())
    except (OSError, IndexError):
        return "x86-64-v3"
    if {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512cd"} <= flags:
        return "x86-64-v4"
    return "x86-64-v3" if {"avx2", "fma", "bmi2"} <= flags else "x86-64-v2"


def host_target(threads: int, *, in_order: bool = False) -> Any:
    """The TVM target for this machine and a number of threads.

    With ``in_order`` LLVM keeps the order of sums and products, which it may change otherwise so that sums vectorise.
    NaN, infinities and signs of zero keep their meaning, and quotients are divided: 41 * (1 / 41) is less than 1.
    """
    flags = {} if in_order else {"fast-math-reassoc": True}
    return tvm.target.Target({"kind": "llvm", "mcpu": host_cpu(), "num-cores": threads, **flags})


def use_threads(threads: int) -> None:
    """Give the calling thread's TVM pool `threads` threads, unpinned; call it before the first parallel kernel.

    Parallel kernels split over the whole pool of the thread that calls them. Without this TVM takes half the cores,
    and its simpler setting `config_threadpool(1, n)` pins the caller to a core.
    """
    share_cores = -3  # kSpecifyThreadShareAllCore
    cores = [str(c) for c in sorted(os.sched_getaffinity(0))]
    tvm.get_global_func("runtime.config_threadpool")(share_cores, threads, cores, threads)
