"""The machine a model is compiled for: device model, instruction sets, threads."""

from __future__ import annotations

import math
import os
import platform
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from collage.core.cgroup import CpuQuota, cpu_quota
from collage.core.cpuinfo import cpu_flags, describe_cpu, precisions_of

_THROTTLED = re.compile(r" throttled to [0-9.e+-]+\Z")
"""The end of ``Target.measured_on`` if the threads exceed a quota."""


@dataclass(frozen=True)
class Target:
    """A CPU: its model name, a hash of the instruction sets that matter, and the threads a run may use.

    ``throttled_to`` is the CPU quota in cores if the threads exceed it, so that the system stops them all for a part
    of each period.
    """

    device: str
    flags: str
    threads: int
    throttled_to: float | None = None

    def __str__(self) -> str:
        return f"{self.device} ({self.flags}), {self.threads} thread{'s' if self.threads != 1 else ''}"

    @property
    def hardware(self) -> str:
        """Device and flags, without threads: what a module file needs."""
        return f"{self.device} {self.flags}"

    @property
    def measured_on(self) -> str:
        """The hardware as it is part of the measurements' key.

        A quota that the threads stay within changes no time. One that they exceed does: the time of a kernel is then
        that of waiting for the next period, and must not be taken for the machine's.
        """
        return self.hardware + ("" if self.throttled_to is None else f" throttled to {self.throttled_to:g}")


def hardware_of(measured_on: str) -> str:
    """The ``Target.hardware`` in a ``Target.measured_on``: the same machine has several of these under a quota."""
    return _THROTTLED.sub("", measured_on)


@dataclass(frozen=True)
class Cores:
    """The cores that this process may run on, and the CPU time that it may take there."""

    allowed: int
    quota: CpuQuota | None = None

    @property
    def usable(self) -> int:
        """The number of threads that can run all the time: the quota rounded down, but at least one.

        Threads beyond the quota use up a period's time before it ends, and then all of them are stopped until the next
        one: each call that meets the end of a period takes up to 25 ms longer.
        """
        return self.allowed if self.quota is None else max(1, min(self.allowed, math.floor(self.quota.cores)))

    @property
    def shared(self) -> bool:
        """Whether the quota is the bound, and not a set of cores. Then others run on the same cores."""
        return self.quota is not None and self.quota.cores < self.allowed

    def __str__(self) -> str:
        about = f" ({self.quota})" if self.quota is not None and self.shared else ""
        return f"{self.usable} core{'s' if self.usable != 1 else ''}{about}"


def cores() -> Cores:
    """The cores and the CPU time that this process may use now."""
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        allowed = os.cpu_count() or 1
    return Cores(allowed, cpu_quota())


def usable_cores() -> int:
    """Cores this process can keep busy: those it may run on, or its CPU quota if that is less."""
    return cores().usable


def host(threads: int | None = None) -> Target:
    """The machine this process runs on; ``threads`` defaults to the cores it can keep busy."""
    return target_of(*_cpu(), threads, cores())


def target_of(device: str, flags: str, threads: int | None, cores: Cores) -> Target:
    """The target for a CPU, ``threads`` (by default as many as can be kept busy) and what may be used of it."""
    threads = threads or cores.usable
    quota = cores.quota.cores if cores.quota is not None else math.inf
    return Target(device, flags, threads, quota if quota < min(threads, cores.allowed) else None)


@cache
def flags() -> frozenset[str]:
    """The names of this CPU's instruction sets, as the system names them; none if it does not."""
    return cpu_flags(_text())


def reduced_precisions() -> frozenset[str]:
    """The reduced precisions (see ``Variant.precision``) for which this CPU has instructions."""
    return precisions_of(flags())


def has_exact_int8_sums() -> bool:
    """Whether sums of products of 8-bit numbers are exact in every library.

    On x86 without dot products of 8 bits (VNNI or AMX) libraries add pairs of products in 16 bits, which saturates:
    255 * 127 * 2 is 32767 there.
    """
    return "sse2" not in flags() or "int8" in reduced_precisions()


@cache
def _cpu() -> tuple[str, str]:
    device, hashed = describe_cpu(_text(), lambda: platform.processor() or platform.machine())
    asked = os.environ.get("COLLAGE_ISA")  # which kernels heed, see native/kernels/cpu.h
    return device, f"{hashed} {asked}" if asked == "avx2" else hashed


def _text() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return ""
