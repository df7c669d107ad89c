"""Nests over rows: everything one row needs is computed while the row is in cache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import tirx

from collage.backends.tvm_codegen.prim_blocks import (
    WINDOW,
    Block,
    Load,
    can_coalesce,
    coefficients_of,
    collect,
    contiguous_axis,
    extent_of,
    largest_divisor,
    reads_along_reduction,
    users_of,
)

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
        if (
            block.store.buffer not in free
            or not block.regular
            or any(u.store.buffer not in env for u in users)
        ):
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
    others = [
        (a, loop) for i, (a, loop) in enumerate(zip(anchor.axes, loops, strict=True)) if i not in nest.rows
    ]
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
            _order_reduction(
                sch, block, [x for a, x in pairs if not a.reduce], [x for a, x in pairs if a.reduce]
            )


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
