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
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from collage.backends.tvm_codegen.arithmetic import vector_math
from collage.backends.tvm_codegen.inline import inline_cheap
from collage.backends.tvm_codegen.keep_nan import infinite_limits, keep_nan
from collage.backends.tvm_codegen.prim_blocks import (
    WINDOW,
    Block,
    Load,
    blocks_of,
    can_coalesce,
    coefficients_of,
    collect,
    contiguous_axis,
    extent_of,
    largest_divisor,
    reads_along_reduction,
    strides_of,
    users_of,
)
from collage.backends.tvm_codegen.products import rounded_by_llvm, with_rounded_products
from collage.backends.tvm_codegen.tidy import drop_dead_blocks, order_floats, split_read_outputs
from collage.native.library import core_problem

logger = logging.getLogger(__name__)


def emit_injective(sch: Any, block: Block, parallel: bool, threads: int) -> None:
    """Schedule one block without producers: merge axes that walk memory together, tile transposes, and split."""
    loops, fixed = list(sch.get_loops(block.rv)), _condition_vars(sch.get(block.rv).body)
    groups: list[list[int]] = []
    for i, axis in enumerate(block.axes):
        previous = [block.axes[j] for j in groups[-1]] if groups else []
        free = not any(a.key in fixed and a.extent > 1 for a in (*previous, axis))
        trivial = axis.extent == 1 or all(a.extent == 1 for a in previous)
        if groups and (trivial or (free and can_coalesce(block, [*previous, axis]))):
            groups[-1].append(i)
        else:
            groups.append([i])
    merged = [sch.fuse(*(loops[i] for i in g)) if len(g) > 1 else loops[g[0]] for g in groups]
    merged = _tile_transpose(sch, block, groups, merged)
    if not parallel:
        return
    if len(merged) == 1:
        merged = list(sch.split(merged[0], _shares(extent_of(sch, merged[0]), threads)))
    count = 0
    for count in range(1, len(merged)):
        if imbalance(math.prod(extent_of(sch, x) for x in merged[:count]), threads) <= 1.1:
            break
    sch.parallel(sch.fuse(*merged[:count]) if count > 1 else merged[0])


def _condition_vars(stmt: Any) -> set[int]:
    """Variables used outside of load indices: in conditions, or as values."""
    found: set[int] = set()

    def visit(node: Any) -> Any:
        if isinstance(node, tvm.ir.expr.TensorLoad):
            return tvm_ffi.WalkResult.SKIP
        if isinstance(node, tvm.ir.Var):
            found.add(hash(node))
        return tvm_ffi.WalkResult.ADVANCE

    for store in collect(stmt, tirx.BufferStore):
        tvm_ffi.structural_walk(store.value, (object, visit), order="pre")
    return found


def _tile_transpose(sch: Any, block: Block, groups: Sequence[Sequence[int]], loops: list[Any]) -> list[Any]:
    """Tile 16x16, the operand's axis innermost, if the main operand is contiguous along another axis."""
    position = contiguous_axis(block)
    main = max(block.loads, key=lambda x: math.prod(x.shape), default=None)
    if position is None or main is None or len(groups) < 2:
        return loops
    strides = strides_of(main)
    outer = [
        i
        for i, g in enumerate(groups)
        if any(strides.get(block.axes[j].key) == 1 and block.axes[j].extent > 1 for j in g)
    ]
    inner = [i for i, g in enumerate(groups) if position in g]
    if not outer or outer == inner or strides.get(block.axes[position].key) in (0, 1):
        return loops
    a, b = loops[outer[0]], loops[inner[0]]
    tile_a, tile_b = largest_divisor(extent_of(sch, a), 16), largest_divisor(extent_of(sch, b), 16)
    if min(tile_a, tile_b) < 4:
        return loops
    ao, ai = sch.split(a, [None, tile_a])
    bo, bi = sch.split(b, [None, tile_b])
    order = [ao if i == outer[0] else bo if i == inner[0] else x for i, x in enumerate(loops)]
    sch.reorder(*order, bi, ai)
    return [*order, bi, ai]


def emit_wide_reduction(sch: Any, block: Block, threads: int) -> bool:
    """Schedule a big reduction with fewer results than threads: one partial result a thread, then their sum."""
    loops = [x for a, x in zip(block.axes, sch.get_loops(block.rv), strict=True) if a.reduce]
    steps = math.prod(a.extent for a in block.reduction)
    shares = next((d for d in range(threads, 64 * threads) if steps % d == 0 and imbalance(d, threads) <= 1.1), None)
    if shares is None or not can_coalesce(block, block.reduction):
        return False
    outer, _ = sch.split(sch.fuse(*loops), [shares, None])
    try:
        partial = sch.rfactor(outer, 0)
    except (RuntimeError, ValueError) as error:
        logger.debug("block %s is not factored: %s", block.name, error)
        return False
    inner = sch.get_loops(partial)
    share = next(x for x in inner if extent_of(sch, x) == shares)
    sch.reorder(share, *(x for x in inner if not x.same_as(share)))
    sch.parallel(share)
    sch.decompose_reduction(partial, sch.get_loops(partial)[-1])
    return True


def _shares(extent: int, threads: int) -> list[int | None]:
    """Split factors that give each thread its part of a flat loop. They are exact if some divisor is balanced."""
    for d in range(threads, min(extent, 64 * threads) + 1):
        if extent % d == 0 and imbalance(d, threads) <= 1.1:
            return [d, None]
    return [threads, None]


def imbalance(count: int, threads: int) -> float:
    """Time of the busiest thread over the mean, when `count` equal steps are dealt out in equal blocks."""
    return math.ceil(count / threads) * threads / count


TILE = 64  # elements of the contiguous axis kept together when rows run along it: 1-4 vector registers
SHORT = 64  # contiguous reductions up to this many steps are done for 16 rows at once


@dataclass
class Nest:
    """An anchor block, its axes that serve as rows, and the producers computed once a row (users first)."""

    anchor: Block
    rows: set[int]
    attached: list[Block] = field(default_factory=list)

    def work(self) -> float:
        return sum(b.iterations * (1.0 + b.cost / 8) for b in [self.anchor, *self.attached])


def gather(anchor: Block, blocks: Sequence[Block], free: set[int], least_rows: int) -> Nest:
    """Collect the producers that can be computed row by row under `anchor`.

    A producer joins if all its users are in the nest and, following plain index variables from the anchor
    down, at least `least_rows` rows are left in which it computes each of its elements once.
    """
    axes = {a.key: i for i, a in enumerate(anchor.axes) if not a.reduce and a.extent > 1}
    nest = Nest(anchor, set(axes.values()))
    env: dict[int, dict[int, int]] = {anchor.store.buffer: axes}
    for block in reversed(blocks[: blocks.index(anchor)]):
        users = users_of(block, blocks)
        if block.store.buffer not in free or not block.regular or any(u.store.buffer not in env for u in users):
            continue
        mappings = [
            {
                w: env[u.store.buffer][e]
                for w, e in zip(_plain(block.store, block), _plain(x, u), strict=True)
                if w is not None and e is not None and e in env[u.store.buffer]
            }
            for u in users
            for x in u.loads
            if x.buffer == block.store.buffer
        ]
        common = {k: v for k, v in mappings[0].items() if all(m.get(k) == v for m in mappings)}
        rows = nest.rows & set(common.values())
        if rows != nest.rows and 8 * block.iterations <= math.prod(a.extent for a in anchor.spatial):
            continue  # it is small and rows share it, so that computing it once before the nest is cheaper
        if math.prod(anchor.axes[i].extent for i in rows) < least_rows:
            continue
        nest.rows = rows
        nest.attached.append(block)
        env[block.store.buffer] = common
    return nest


def _plain(load: Load, block: Block) -> list[int | None]:
    """For each dimension of a load: the axis that alone indexes it (but for axes of one step), or None."""
    unit = {a.key for a in block.axes if a.extent == 1}
    out: list[int | None] = []
    for index in load.indices:
        terms = [(k, v) for k, v in coefficients_of(index).items() if k not in unit]
        shifted = any(int(c) != 0 for c in collect(index, tirx.IntImm)) if terms and len(terms) == 1 else True
        out.append(terms[0][0] if not shifted and terms[0][1] == 1 else None)
    return out


def emit_rows(sch: Any, nest: Nest, parallel: bool) -> None:
    """Schedule a nest with rows outermost, and everything that a row needs inside."""
    anchor = nest.anchor
    loops = list(sch.get_loops(anchor.rv))
    rows = {i: loops[i] for i in sorted(nest.rows)}
    tail = together = None
    last = contiguous_axis(anchor)
    if last is not None and last in rows:
        extent = anchor.axes[last].extent
        tile = largest_divisor(extent, TILE)
        if extent <= TILE and len(rows) > 1:
            tail = rows.pop(last)
        elif extent > TILE and tile >= 8:
            rows[last], tail = sch.split(loops[last], [None, tile])
    elif rows and any(_is_short(b) for b in [anchor, *nest.attached]):
        key, loop = list(rows.items())[-1]
        if (tile := largest_divisor(extent_of(sch, loop), 8)) >= 4 and extent_of(sch, loop) > tile:
            rows[key], together = sch.split(loop, [None, tile])
    others = [(a, loop) for i, (a, loop) in enumerate(zip(anchor.axes, loops, strict=True)) if i not in nest.rows]
    spatial = [together] if together is not None else []
    spatial += [loop for a, loop in others if not a.reduce] + ([tail] if tail is not None else [])
    if last is not None and last not in nest.rows:  # the contiguous axis goes innermost
        spatial.sort(key=lambda loop: loop.same_as(loops[last]))
    reduce = [loop for a, loop in others if a.reduce]
    row_loops = list(rows.values())
    if len(row_loops + spatial + reduce) > 1:
        sch.reorder(*row_loops, *spatial, *reduce)
    depth = 1 if row_loops else 0
    if row_loops:
        for block in nest.attached:
            sch.compute_at(block.rv, row_loops[-1], preserve_unit_loops=True)
        row = sch.fuse(*row_loops)
        if parallel:
            sch.parallel(row)
    if anchor.reduction:
        _order_reduction(sch, anchor, spatial, reduce)
    for block in nest.attached:
        if block.reduction:
            inner = sch.get_loops(block.rv)[depth:]
            pairs = list(zip(block.axes, inner, strict=True))
            _order_reduction(sch, block, [x for a, x in pairs if not a.reduce], [x for a, x in pairs if a.reduce])


def _order_reduction(sch: Any, block: Block, spatial: list[Any], reduce: list[Any]) -> None:
    """Put the contiguous axis innermost: the reduction's own, or the last spatial one with the reduction around it.

    A short reduction along contiguous memory does up to 16 rows at a time, which LLVM turns into independent vector
    sums.
    """
    steps = math.prod(a.extent for a in block.reduction)
    along = reads_along_reduction(block)
    wide = [x for x in spatial if extent_of(sch, x) > 1]
    if along:
        if can_coalesce(block, block.reduction):
            reduce = [sch.fuse(*reduce)]
        if _is_short(block) and wide and (tile := largest_divisor(extent_of(sch, wide[-1]), 16)) >= 4:
            _, rows = sch.split(wide[-1], [None, tile])
            sch.reorder(*reduce, rows)
    elif steps <= WINDOW and wide:
        for loop in reduce:
            sch.unroll(loop)
        return  # init stays inside, or LLVM keeps no result in registers
    elif wide:
        inner = wide[-1]
        if extent_of(sch, inner) > TILE:
            _, inner = sch.split(inner, [None, largest_divisor(extent_of(sch, inner), TILE)])
        sch.reorder(*reduce, inner)
    sch.decompose_reduction(block.rv, reduce[0])


def _is_short(block: Block) -> bool:
    steps = math.prod(a.extent for a in block.reduction)
    return bool(block.reduction) and 1 < steps <= SHORT and reads_along_reduction(block)


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
        leading = [x for a, x in zip(block.axes, loops, strict=False) if not a.reduce][: max(1, len(loops) - 1)]
        if block.regular and leading and _worth_a_loop(block.iterations * (1 + block.cost / 8), threads):
            try:
                sch.parallel(sch.fuse(*leading))
            except (RuntimeError, ValueError) as error:
                logger.debug("block %s stays serial: %s", block.name, error)
    return sch.mod["main"]


def _worth_a_loop(work: float, threads: int) -> bool:
    return threads > 1 and work > (POOL_WORK if core_problem() else TEAM_WORK)
