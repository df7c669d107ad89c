"""PrimFuncs as lists of nests before they are scheduled: dead nests, outputs that are read, float maxima."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from collage.backends.tvm_codegen.arithmetic import let
from collage.backends.tvm_codegen.inline import MAX_EXTRA_COST
from collage.backends.tvm_codegen.prim_blocks import blocks_of, collect, reads_along_reduction, users_of


def drop_dead_blocks(func: Any) -> Any:
    """Remove nests whose results nobody reads (batch_norm's running statistics, unused tuple fields)."""
    stmts, outputs = root_stmts(func), {hash(p) for p in func.params}
    while True:
        reads = [_loaded(s) for s in stmts]
        live = [
            s
            for i, s in enumerate(stmts)
            if not (w := _stored(s)) or w & outputs or any(w & r for j, r in enumerate(reads) if j != i)
        ]
        if len(live) == len(stmts):
            break
        stmts = live
    used = set().union(*(_stored(s) for s in stmts))
    return rebuild(func, stmts, [b for b in func.body.block.alloc_buffers if hash(b) in used])


def split_read_outputs(func: Any) -> Any:
    """Give cheap outputs that are also read inside the function an intermediate of their own, copied out.

    Inlining takes intermediates only. `(x + y, layer_norm(x + y))` reads x and y again rather than wait for
    the sum.
    """
    blocks = blocks_of(s_tir.Schedule(func))
    cheap = {b.store.buffer for b in blocks if not b.reduction and b.cost * len(users_of(b, blocks)) <= MAX_EXTRA_COST}
    stmts, allocated = root_stmts(func), list(func.body.block.alloc_buffers)
    for param in func.params:
        key = hash(param)
        writers = [i for i, s in enumerate(stmts) if key in _stored(s)]
        if key not in cheap or not any(key in _loaded(s) for i, s in enumerate(stmts) if i not in writers):
            continue
        inner = tirx.decl_buffer(param.shape, param.dtype, f"{param.name}_inner")
        stmts = [tvm_ffi.structural_map(s, (tvm.ir.Var, replacer(param, inner)), order="post") for s in stmts]
        stmts.insert(writers[-1] + 1, copy_nest(inner, param, f"{param.name}_copy"))
        allocated.append(inner)
    return rebuild(func, stmts, allocated)


def order_floats(func: Any) -> Any:
    """Do float32 max and min reductions along contiguous memory on integers that sort the same way.

    `T.max` on floats is a compare and a select, a reduction that LLVM vectorises under `nnan` only, which would also
    fold isnan. Flipping the low 31 bits of negative numbers makes them sort as integers, for two operations a vector.
    """
    sch = s_tir.Schedule(func)
    names = {b.name for b in blocks_of(sch) if b.regular and b.reduction and reads_along_reduction(b)}
    stmts: list[Any] = []
    allocated = list(func.body.block.alloc_buffers)
    for stmt in root_stmts(func):
        found = [b for b in collect(stmt, s_tir.SBlock) if b.name_hint in names]
        store: Any = found[0].body if len(found) == 1 else None
        value: Any = getattr(store, "value", None)
        if not isinstance(value, tirx.Max | tirx.Min) or str(value.ty.dtype) != "float32" or not _is_update(store):
            stmts.append(stmt)
            continue
        inner = tirx.decl_buffer(store.buffer.shape, "int32", f"{store.buffer.name}_ordered")
        allocated.append(inner)
        changed = _on_ordered(found[0], store, inner)
        stmts.append(tvm_ffi.structural_map(stmt, (s_tir.SBlock, replacer(found[0], changed)), order="post"))
        decode = copy_nest(
            inner, store.buffer, f"{store.buffer.name}_back", lambda x: tirx.reinterpret("float32", _flip(x))
        )
        stmts.append(decode)
    return rebuild(func, stmts, allocated)


def _stored(stmt: Any) -> set[int]:
    return {hash(x.buffer) for x in collect(stmt, tirx.BufferStore)}


def _loaded(stmt: Any) -> set[int]:
    return {hash(x.source) for x in collect(stmt, tvm.ir.expr.TensorLoad)}


def _is_update(store: Any) -> bool:
    left = store.value.a
    return isinstance(left, tvm.ir.expr.TensorLoad) and left.source.same_as(store.buffer)


def _flip(bits: Any) -> Any:
    """Turns float bits to an integer of the same order, and back: it is its own inverse."""
    sign = tirx.shift_right(bits, tirx.IntImm("int32", 31))
    return tirx.bitwise_xor(bits, tirx.bitwise_and(sign, tirx.IntImm("int32", 0x7FFFFFFF)))


def _on_ordered(block: Any, store: Any, inner: Any) -> Any:
    kind = type(store.value)
    worst, best = (-0x7F800001, 0x7FFFFFFF) if kind is tirx.Max else (0x7F800000, -0x80000000)  # infinity, NaN
    value = kind(
        tirx.BufferLoad(inner, store.indices),
        let(
            store.value.b,
            lambda x: tirx.Select(tirx.isnan(x), tirx.IntImm("int32", best), let(tirx.reinterpret("int32", x), _flip)),
        ),
    )
    init = tirx.BufferStore(inner, tirx.IntImm("int32", worst), store.indices)
    writes = [tirx.BufferRegion(inner, r.region) for r in block.writes]
    body = tirx.BufferStore(inner, value, store.indices)
    return s_tir.SBlock(block.iter_vars, block.reads, writes, block.name_hint, body, init)


def rebuild(func: Any, stmts: Sequence[Any], allocated: Sequence[Any]) -> Any:
    """The PrimFunc with other nests and intermediate buffers."""
    root = func.body.block
    body = stmts[0] if len(stmts) == 1 else tirx.SeqStmt(list(stmts))
    block = s_tir.SBlock([], root.reads, root.writes, root.name_hint, body, None, list(allocated), [], root.annotations)
    return func.with_body(s_tir.SBlockRealize([], True, block))


def root_stmts(func: Any) -> list[Any]:
    """The nests of a PrimFunc in order."""
    body = func.body.block.body
    return list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]


def replacer(old: Any, new: Any) -> Callable[[Any], Any]:
    """For ``structural_map``: puts ``new`` in the place of ``old``."""
    return lambda var: new if var.same_as(old) else var


def copy_nest(source: Any, target: Any, name: str, convert: Callable[[Any], Any] = lambda x: x) -> Any:
    """A nest that copies one buffer to another of the same shape, element by element."""
    loops = [tirx.Var(f"i{d}", "int64") for d in range(len(target.shape))]
    axes = [tirx.Var(f"v{d}", "int64") for d in range(len(target.shape))]
    ranges = [tvm.ir.Range.from_min_extent(v, 1) for v in axes]
    zero = tirx.IntImm("int64", 0)
    iters = [
        tirx.IterVar(tvm.ir.Range.from_min_extent(zero, n), v, tirx.IterVar.DataPar)
        for n, v in zip(target.shape, axes, strict=True)
    ]
    store = tirx.BufferStore(target, convert(tirx.BufferLoad(source, axes)), axes)
    reads, writes = [tirx.BufferRegion(source, ranges)], [tirx.BufferRegion(target, ranges)]
    stmt = s_tir.SBlockRealize(loops, True, s_tir.SBlock(iters, reads, writes, name, store))
    for var, extent in zip(reversed(loops), reversed(list(target.shape)), strict=True):
        stmt = tirx.For(var, zero, extent, tirx.ForKind.SERIAL, stmt)
    return stmt
