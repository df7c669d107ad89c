"""Which PrimFuncs hold a contraction (convolution, matrix product), and which need a tuned schedule."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import tvm
from tvm import s_tir, tirx

from collage.backends.tvm_codegen.prim_blocks import (
    WINDOW,
    Block,
    blocks_of,
    coefficients_of,
    collect,
    shape_of,
)

MAX_FLOP = 1_000_000  # contractions above this need a tuned kernel, and are refused without one


class UnscheduledError(Exception):
    """Raised if no schedule of this module is good enough for a function. The message says why."""


def has_contraction(func: Any) -> bool:
    """Whether `func` sums products of two different buffers, however few."""
    return any(True for _ in _contractions(s_tir.Schedule(func)))


def compute_bound_reason(func: Any) -> str | None:
    """Why `func` holds a contraction that needs a tuned kernel, or None if it does not.

    A contraction counts when it does more than `MAX_FLOP` and uses what it loads more than four times.
    Depthwise convolutions pass: every axis of their weights is an axis of the data.
    """
    for block, product, buffers in _contractions(s_tir.Schedule(func)):
        touched = sum(math.prod(shape_of(b)) for b in buffers) + math.prod(block.store.shape)
        heavy = 2 * block.iterations > MAX_FLOP and block.iterations > 4 * touched
        if heavy and not _is_depthwise(block, product):
            flop = 2 * block.iterations / 1e6
            return f"a contraction of {flop:.1f} MFLOP ({block.name}) needs a tuned schedule (--tune-trials)"
    return None


def _contractions(sch: Any) -> Iterator[tuple[Block, Any, set[Any]]]:
    """Blocks that sum products of two different buffers, with the product and the buffers."""
    for block in blocks_of(sch):
        if not block.reduction:
            continue
        for product in collect(sch.get(block.rv).body, tirx.Mul):
            left = {x.source for x in collect(product.a, tvm.ir.expr.TensorLoad)}
            right = {x.source for x in collect(product.b, tvm.ir.expr.TensorLoad)}
            if left and right and not {hash(x) for x in left} & {hash(x) for x in right}:
                yield block, product, left | right


def _is_depthwise(block: Block, product: Any) -> bool:
    """Whether both factors share every spatial axis of the smaller one, and the window is small."""
    wide = {a.key for a in block.axes if a.extent > 1}
    spatial = {a.key for a in block.spatial} & wide
    plain: list[set[int]] = []
    used: list[set[int]] = []
    for side in (product.a, product.b):
        loads = collect(side, tvm.ir.expr.TensorLoad)
        indices = [{k: v for k, v in coefficients_of(i).items() if k in wide} for x in loads for i in x.indices]
        plain.append({k for i in indices if len(i) == 1 for k, v in i.items() if v == 1})
        used.append({k for i in indices for k in i})
    window = math.prod(a.extent for a in block.reduction)
    data, weight = (0, 1) if len(used[0] & spatial) >= len(used[1] & spatial) else (1, 0)
    channels = used[weight] & spatial
    return window <= WINDOW and channels <= plain[weight] and channels <= plain[data]
