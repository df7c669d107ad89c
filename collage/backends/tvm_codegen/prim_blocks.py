"""A PrimFunc's blocks as the schedule rules see them: axes, loads with their strides, cost of an element."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

WINDOW = 49  # reductions up to this many steps (a 7x7 window) are unrolled inside the vectorised axis

_TRANSCENDENTAL = "exp exp2 exp10 erf tanh sigmoid log log2 log10 log1p pow sin cos".split()
_COST = {"sqrt": 4.0, "rsqrt": 4.0, "if_then_else": 8.0, "fmod": 8.0} | dict.fromkeys(_TRANSCENDENTAL, 12.0)


@dataclass(frozen=True)
class BlockAxis:
    """One iteration axis of a block: the identity of its variable, its kind and its length."""

    key: int
    reduce: bool
    extent: int


@dataclass(frozen=True)
class Load:
    """One textual read: the buffer's identity, its shape and the index expressions."""

    buffer: int
    shape: tuple[int, ...]
    indices: tuple[Any, ...]


@dataclass(frozen=True)
class Block:
    """What the rules need to know about one block."""

    rv: Any
    name: str
    axes: tuple[BlockAxis, ...]
    loads: tuple[Load, ...]
    store: Load
    cost: float
    nodes: int
    regular: bool  # schedule primitives accept it: one store, and every loop bound to its own axis

    @property
    def iterations(self) -> int:
        return math.prod(a.extent for a in self.axes)

    @property
    def spatial(self) -> tuple[BlockAxis, ...]:
        return tuple(a for a in self.axes if not a.reduce)

    @property
    def reduction(self) -> tuple[BlockAxis, ...]:
        return tuple(a for a in self.axes if a.reduce)


def _walk(node: Any, kind: type, visit: Callable[[Any], None]) -> None:
    tvm_ffi.structural_walk(node, (kind, visit), order="post")


def collect(node: Any, kind: type) -> list[Any]:
    """All nodes of a kind under `node`, inner ones first."""
    found: list[Any] = []
    _walk(node, kind, found.append)
    return found


def shape_of(buffer: Any) -> tuple[int, ...]:
    """Shape of a buffer as integers."""
    return tuple(int(d) for d in buffer.shape)


def _load(buffer: Any, indices: Iterable[Any]) -> Load:
    return Load(hash(buffer), shape_of(buffer), tuple(indices))


def op_name(call: Any) -> str:
    """Name of the operator a call names, without its dialect."""
    return str(getattr(call.op, "name", "")).rpartition(".")[2]


def _cost_and_size(body: Any) -> tuple[float, int]:
    """Cost of one evaluation in simple operations, and the number of expression nodes."""
    cost, size = 0.0, 0

    def visit(node: Any) -> Any:
        nonlocal cost, size
        if isinstance(node, tvm.ir.Expr):
            size += 1
        if isinstance(node, tvm.ir.Call):
            cost += _COST.get(op_name(node), 1.0)
        elif isinstance(node, tirx.Div):
            cost += 4.0
        elif isinstance(node, tirx.Add | tirx.Sub | tirx.Mul | tirx.Max | tirx.Min | tirx.Select | tirx.Cast):
            cost += 0.0 if _is_index(node) else 1.0
        return tvm_ffi.WalkResult.ADVANCE

    tvm_ffi.structural_walk(body, (object, visit), order="post")
    return cost, size


def _is_index(expr: Any) -> bool:
    return str(expr.ty.dtype) in ("int64", "int32") if hasattr(expr, "ty") else True


def describe(sch: Any, rv: Any) -> Block:
    """Read one block."""
    stmt = sch.get(rv)
    axes = tuple(
        BlockAxis(hash(i.var), i.iter_type == tirx.IterVar.CommReduce, int(i.dom.extent)) for i in stmt.iter_vars
    )
    stores = collect(stmt.body, tirx.BufferStore)
    regular = len(stores) == 1 and len(sch.get_loops(rv)) == len(axes) and isinstance(stmt.body, tirx.BufferStore)
    regular &= all(i.iter_type in (tirx.IterVar.DataPar, tirx.IterVar.CommReduce) for i in stmt.iter_vars)
    store = _load(stores[0].buffer, stores[0].indices) if stores else Load(0, (), ())
    loads = tuple(_load(x.source, x.indices) for x in collect(stmt.body, tvm.ir.expr.TensorLoad))
    cost, nodes = _cost_and_size(stmt.body)
    return Block(
        rv,
        stmt.name_hint,
        axes,
        tuple(x for x in loads if x.buffer != store.buffer),
        store,
        cost,
        nodes,
        regular,
    )


def blocks_of(sch: Any) -> list[Block]:
    """The blocks of a schedule, in program order."""
    return [describe(sch, rv) for rv in sch.get_child_blocks(sch.get_sblock("root"))]


def users_of(block: Block, blocks: Iterable[Block]) -> list[Block]:
    """The blocks that read what `block` computes."""
    return [c for c in blocks if any(x.buffer == block.store.buffer for x in c.loads)]


def coefficients_of(expr: Any) -> dict[int, int | None]:
    """The coefficient of each variable in an index, or None if the dependence is not linear."""
    if isinstance(expr, tvm.ir.Var):
        return {hash(expr): 1}
    if isinstance(expr, tirx.Add | tirx.Sub):
        left, right = coefficients_of(expr.a), coefficients_of(expr.b)
        sign = 1 if isinstance(expr, tirx.Add) else -1
        out = dict(left)
        for key, value in right.items():
            known = out.get(key, 0)
            out[key] = None if known is None or value is None else known + sign * value
        return out
    if isinstance(expr, tirx.Mul) and isinstance(expr.b, tirx.IntImm):
        return {k: None if v is None else v * int(expr.b) for k, v in coefficients_of(expr.a).items()}
    return {hash(v): None for v in collect(expr, tvm.ir.Var)}


def strides_of(load: Load) -> dict[int, int | None]:
    """Elements that the flat offset of a load moves by as each variable grows by one, or None if it varies."""
    out: dict[int, int | None] = {}
    pitch = 1
    for extent, index in zip(reversed(load.shape), reversed(load.indices), strict=True):
        for key, value in coefficients_of(index).items():
            known = out.get(key, 0)
            out[key] = None if known is None or value is None else known + value * pitch
        pitch *= extent
    return out


def contiguous_axis(block: Block) -> int | None:
    """Position of the axis along which the block's stores are contiguous."""
    strides = strides_of(block.store)
    return next((i for i, a in enumerate(block.axes) if a.extent > 1 and strides.get(a.key) == 1), None)


def reads_along_reduction(block: Block) -> bool:
    """Whether the largest operand is contiguous along a reduction axis: a row, not a sliding window."""
    main = max(block.loads, key=lambda x: math.prod(x.shape), default=None)
    if main is None:
        return True
    strides, wide = strides_of(main), {a.key for a in block.axes if a.extent > 1}
    reduced = {a.key for a in block.reduction} & wide
    terms = [set(coefficients_of(i)) & wide for i in main.indices]
    return any(strides.get(k) == 1 and all(t <= reduced for t in terms if k in t) for k in reduced)


def can_coalesce(block: Block, axes: Sequence[BlockAxis]) -> bool:
    """Whether `axes` in order move every operand by a constant stride, so that they can be one loop."""
    axes = [a for a in axes if a.extent > 1]
    for outer, inner in itertools.pairwise(axes):
        for load in (block.store, *block.loads):
            strides = strides_of(load)
            left, right = strides.get(outer.key, 0), strides.get(inner.key, 0)
            if left is None or right is None or left != right * inner.extent:
                return False
    return True


def extent_of(sch: Any, loop: Any) -> int:
    """The number of steps of a loop."""
    return int(sch.get(loop).extent)


def largest_divisor(n: int, most: int) -> int:
    """The largest divisor of `n` up to `most`."""
    return next(d for d in range(min(n, most), 0, -1) if n % d == 0)
