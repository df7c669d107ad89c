"""PrimFuncs that are not scheduled yet as lists of nests, and nests of our own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import s_tir, tirx

__all__ = ["copy_nest", "rebuild", "replacer", "root_stmts"]


def rebuild(func: Any, stmts: Sequence[Any], allocated: Sequence[Any]) -> Any:
    """The PrimFunc with other nests and intermediate buffers."""
    root = func.body.block
    body = stmts[0] if len(stmts) == 1 else tirx.SeqStmt(list(stmts))
    block = s_tir.SBlock(
        [], root.reads, root.writes, root.name_hint, body, None, list(allocated), [], root.annotations
    )
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
