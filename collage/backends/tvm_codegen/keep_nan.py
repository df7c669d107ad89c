"""Maxima and minima that keep NaN, as ONNX Runtime's do, where TVM's give the other operand.

`T.max(a, b)` becomes a compare and a select, `a > b ? a : b`, which is one `vmaxps` that gives b if either is NaN.
With a constant the variable goes to the second place, which costs nothing; two variables take a test for NaN and a
blend more.

Pooling stays as it was: ONNX Runtime's own answer depends there on where in the window the NaN is.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import s_tir, tirx

from collage.backends.tvm_codegen.arithmetic import let
from collage.backends.tvm_codegen.prim_blocks import collect

_FLOATS = ("float16", "float32", "float64")
_POOLING = "pool"
"""The beginnings of the names of blocks that look for the largest value of a window."""


def keep_nan(func: Any) -> Any:
    """Make the maxima and minima of floats keep NaN. It comes after scheduling, which knows `T.max` as a reduction."""

    def block(found: Any) -> Any:
        if found.name_hint.startswith(_POOLING) or collect(found.body, s_tir.SBlock):
            return found
        return tvm_ffi.structural_map(found, ((tirx.Max, tirx.Min), _rewritten), order="post")

    if not isinstance(func.body, s_tir.SBlockRealize):
        return tvm_ffi.structural_map(func, ((tirx.Max, tirx.Min), _rewritten), order="post")
    return tvm_ffi.structural_map(func, (s_tir.SBlock, block), order="post")


def infinite_limits(func: Any) -> Any:
    """Let reductions start at infinity, not at the largest finite number, since they may see only infinities."""

    def block(found: Any) -> Any:
        init = found.init
        kind = getattr(getattr(found.body, "value", None), "ty", None)
        if found.name_hint.startswith(_POOLING) or not isinstance(init, tirx.BufferStore) or kind is None:
            return found
        value, dtype = init.value, str(kind.dtype)
        if not isinstance(value, tirx.FloatImm) or dtype not in _FLOATS:
            return found
        least, most = float(tirx.min_value(dtype).value), float(tirx.max_value(dtype).value)
        if float(value.value) not in (least, most):
            return found
        infinity = tirx.infinity(dtype)
        start = infinity if float(value.value) == most else tirx.const(float("-inf"), dtype)
        store = tirx.BufferStore(init.buffer, start, init.indices)
        return s_tir.SBlock(
            found.iter_vars, found.reads, found.writes, found.name_hint, found.body, store,
            found.alloc_buffers, found.match_buffers, found.annotations,
        )  # fmt: skip

    return tvm_ffi.structural_map(func, (s_tir.SBlock, block), order="post")


def _rewritten(found: Any) -> Any:
    if str(found.ty.dtype) not in _FLOATS:
        return found
    most, a, b = isinstance(found, tirx.Max), found.a, found.b

    def better(x: Any, y: Any) -> Any:
        """The better one of both, or y if either is NaN."""
        return tirx.Select(x > y if most else x < y, x, y)

    if isinstance(b, tirx.FloatImm):
        return let(a, lambda x: better(b, x))
    if isinstance(a, tirx.FloatImm):
        return let(b, lambda x: better(a, x))
    return let(b, lambda y: let(a, lambda x: tirx.Select(tirx.isnan(y), y, better(y, x))))
