"""Nests of one block: elementwise and transposing loops, and reductions to fewer results than threads."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from collage.backends.tvm_codegen.prim_blocks import (
    Block,
    can_coalesce,
    collect,
    contiguous_axis,
    extent_of,
    largest_divisor,
    strides_of,
)

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
    shares = next(
        (d for d in range(threads, 64 * threads) if steps % d == 0 and imbalance(d, threads) <= 1.1), None
    )
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
