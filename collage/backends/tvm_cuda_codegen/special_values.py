"""Maxima and minima that keep NaN and begin at infinity, in functions that have been lowered for a GPU.

On a CPU this is done before lowering (``tvm_codegen.keep_nan``). Here TVM has to know a maximum that many threads find
together as a maximum, which begins at the least finite number. So the kernels are changed afterwards.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from collage.backends.tvm_codegen.keep_nan import keep_nan
from collage.backends.tvm_codegen.prim_blocks import collect

__all__ = ["keep_special_values"]

_FLOATS = ("float16", "float32", "float64")
_POOLING = "pool"


def keep_special_values(func: Any, device: Any) -> Any:
    """The module ``device`` of kernels that ``func`` has been lowered to, with special values kept as on a CPU.

    That leaves the largest value of a window to be what TVM makes it, as on a CPU.
    """
    blocks = collect(func.body, s_tir.SBlock)
    if any(each.name_hint.startswith(_POOLING) for each in blocks):
        return device
    begins = any(_begins_at_limit(each) for each in blocks)
    kernels = {var: keep_nan(_from_infinity(each) if begins else each) for var, each in device.functions.items()}
    return tvm.IRModule(kernels, attrs=device.attrs)


def _begins_at_limit(block: Any) -> bool:
    """Whether the block is a reduction that begins at a limit, or such a beginning, which a schedule has cut off."""
    store = block.body if block.name_hint.endswith("_init") else block.init
    return isinstance(store, tirx.BufferStore) and _is_limit(store.value)


def _from_infinity(kernel: Any) -> Any:
    """The kernel, which begins to look at infinity where it began at the largest finite numbers."""

    def store(found: Any) -> Any:
        if not _is_limit(found.value):
            return found
        infinity = tirx.const(float("-inf" if float(found.value.value) < 0 else "inf"), str(found.value.ty.dtype))
        return tirx.BufferStore(found.buffer, infinity, found.indices)

    return tvm_ffi.structural_map(kernel, (tirx.BufferStore, store), order="post")


def _is_limit(value: Any) -> bool:
    dtype = str(getattr(getattr(value, "ty", None), "dtype", ""))
    if not isinstance(value, tirx.FloatImm) or dtype not in _FLOATS:
        return False
    limits = tirx.min_value(dtype), tirx.max_value(dtype)
    return float(value.value) in [float(each.value) for each in limits]
