"""CPU schedules for the PrimFuncs that TVM's legaliser emits: one loop nest a subgraph, left to LLVM to vectorise.

TVM's own CPU lowering keeps one loop nest per operator, never runs in parallel and calls scalar libm. Here, in order:

1. `tidy` drops and splits what FuseTIR leaves behind.
2. `inline` computes cheap producers where they are used; `rows` gathers what is left in nests whose outer
   loop runs over *rows* (all that one row needs is computed while the row is in cache); `flat` the others.
   The innermost loop is contiguous.
3. `keep_nan` makes maxima and minima keep NaN; `products` rounds products before they are added; `arithmetic` turns
   exp, tanh, erf, sigmoid, log and constant powers into polynomials without calls.

Innermost loops stay scalar in TIR. LLVM vectorises them as well as `sch.vectorize` does, handles tails without
predicates, and vectorises float sums because the target sets `fast-math-reassoc`.
"""

from __future__ import annotations

import logging
import math
from functools import partial
from typing import Any

from tvm import s_tir

from collage.backends.tvm_codegen.arithmetic import vector_math
from collage.backends.tvm_codegen.flat import emit_injective, emit_wide_reduction
from collage.backends.tvm_codegen.inline import inline_cheap
from collage.backends.tvm_codegen.keep_nan import infinite_limits, keep_nan
from collage.backends.tvm_codegen.prim_blocks import blocks_of
from collage.backends.tvm_codegen.products import rounded_by_llvm, with_rounded_products
from collage.backends.tvm_codegen.row_nests import emit_rows, gather
from collage.backends.tvm_codegen.tidy import drop_dead_blocks, order_floats, split_read_outputs
from collage.native.library import core_problem

logger = logging.getLogger(__name__)

TEAM_WORK, POOL_WORK = 30_000.0, 100_000.0
"""Work (iterations, an operation counting an eighth on top) from which a nest is worth a parallel loop.

On Collage's team a loop costs 0.1 us, and in TVM's pool several times as much.
"""


def schedule(func: Any, threads: int) -> Any:
    """Schedule one PrimFunc of concrete shapes for `threads` CPU threads; never parallel when `threads` is 1.

    Falls back to TVM's serial nests, parallel over their outer loops, if a rule does not apply.
    """
    outputs = {hash(p) for p in func.params}
    if not isinstance(func.body, s_tir.SBlockRealize):
        return _arithmetic(keep_nan(func))
    func = order_floats(infinite_limits(split_read_outputs(drop_dead_blocks(func))))
    try:
        sch = s_tir.Schedule(func)
        inline_cheap(sch, outputs)
        _place(sch, outputs, threads)
        return _arithmetic(keep_nan(sch.mod["main"]))
    except (RuntimeError, ValueError, TypeError, AttributeError) as error:
        logger.warning("falling back to the default schedule: %s", str(error).strip().rpartition("\n")[2])
        return _arithmetic(keep_nan(default_schedule(func, threads)))


def _arithmetic(func: Any) -> Any:
    return vector_math(func, partial(with_rounded_products, rounded=rounded_by_llvm))


def _place(sch: Any, outputs: set[int], threads: int) -> None:
    blocks = blocks_of(sch)
    free = {b.store.buffer for b in blocks} - outputs
    done: set[int] = set()
    for anchor in reversed(blocks):
        if anchor.store.buffer in done:
            continue
        done.add(anchor.store.buffer)
        if not anchor.regular or not anchor.axes:
            continue
        nest = gather(anchor, blocks, free - done, max(2, threads))
        done |= {b.store.buffer for b in nest.attached}
        parallel = _worth_a_loop(nest.work(), threads)
        few = math.prod(anchor.axes[i].extent for i in nest.rows) < threads
        if not nest.attached and not anchor.reduction:
            emit_injective(sch, anchor, parallel, threads)
        elif nest.attached or not (parallel and few and emit_wide_reduction(sch, anchor, threads)):
            emit_rows(sch, nest, parallel)


def default_schedule(func: Any, threads: int) -> Any:
    """Every block in a nest of its own, parallel over its leading spatial loops if it is big enough."""
    sch = s_tir.Schedule(func)
    for block in blocks_of(sch):
        loops = sch.get_loops(block.rv)
        leading = [x for a, x in zip(block.axes, loops, strict=False) if not a.reduce][
            : max(1, len(loops) - 1)
        ]
        if block.regular and leading and _worth_a_loop(block.iterations * (1 + block.cost / 8), threads):
            try:
                sch.parallel(sch.fuse(*leading))
            except (RuntimeError, ValueError) as error:
                logger.debug("block %s stays serial: %s", block.name, error)
    return sch.mod["main"]


def _worth_a_loop(work: float, threads: int) -> bool:
    return threads > 1 and work > (POOL_WORK if core_problem() else TEAM_WORK)
