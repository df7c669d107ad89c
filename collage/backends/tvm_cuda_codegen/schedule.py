"""GPU schedules for the PrimFuncs that TVM's legaliser emits: TVM's DLight rules, the most special one first."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import tvm
from tvm import s_tir
from tvm.s_tir.dlight import gpu

from collage.backends.tvm_codegen.lower import first_line
from collage.backends.tvm_codegen.products import rounded_in_cuda, with_rounded_products
from collage.backends.tvm_codegen.tidy import drop_dead_blocks

__all__ = ["cuda_target", "schedules"]

logger = logging.getLogger(__name__)

_LIMITS = {
    "max_shared_memory_per_block": 48 << 10,
    "max_threads_per_block": 1024,
    "thread_warp_size": 32,
    "registers_per_block": 64 << 10,
}
"""What each block of threads may take without further ado on all GPUs since 2016."""


def cuda_target(architecture: str) -> Any:
    """The TVM target for GPUs of an architecture such as ``sm_90``, with a CPU as its host."""
    return tvm.target.Target({"kind": "cuda", "arch": architecture, **_LIMITS, "host": {"kind": "llvm"}})


def schedules(func: Any, target: Any) -> Iterator[Any]:
    """The PrimFunc as each rule that takes it schedules it. The last one takes every function.

    A rule may take a function, and yet code generation may refuse what it makes of it. So the caller tries the next.
    Products are rounded before they are added to others.
    """
    if isinstance(func.body, s_tir.SBlockRealize):
        func = drop_dead_blocks(func)
    func = with_rounded_products(func, rounded_in_cuda)
    rules = gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Transpose(), gpu.Fallback()
    for rule in rules:
        try:
            with target:
                found = rule.apply(func, target, False)
        except Exception as error:  # rules fail on what they were not written for, in any way
            logger.debug("%s does not schedule: %s", type(rule).__name__, first_line(error))
            continue
        if found is not None:
            yield (found[0] if isinstance(found, list) else found).mod["main"]
