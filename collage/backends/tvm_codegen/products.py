"""Products that are rounded before they are added to anything, as ONNX Runtime's are.

A fused multiply-add rounds once: ``x * x - y * y`` is not 0 for equal numbers then, and its root may be NaN. TVM's LLVM
fuses whatever flags its target has, and so does NVRTC. What is added up along an axis stays fused, since a sum of
products that are not rounded is nearer to the sum, and since that is what such kernels spend their time on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

_CUDA = {"float16": "__hmul_rn", "float32": "__fmul_rn", "float64": "__dmul_rn"}


def with_rounded_products(func: Any, rounded: Callable[[Any], Any]) -> Any:
    """The function with ``rounded`` in the place of all products of floats but those that are added to their own sum.

    Such a sum is what a reduction stores in each step: ``sum = sum + x * y``.
    """

    def product(found: Any) -> Any:
        exact = _is_power_of_two(found.a) or _is_power_of_two(found.b)
        return found if exact or str(found.ty.dtype) not in _CUDA else rounded(found)

    def inside(value: Any) -> Any:
        return tvm_ffi.structural_map(value, (tirx.Mul, product), order="post")

    def added(value: Any) -> Any:
        if isinstance(value, tirx.Let):
            return tirx.Let(value.var, inside(value.value), added(value.body))
        return inside(value.a) * inside(value.b) if isinstance(value, tirx.Mul) else inside(value)

    def store(found: Any) -> Any:
        value = found.value
        if isinstance(value, tirx.Add) and _reads(value.a, found.buffer):
            return tirx.BufferStore(found.buffer, value.a + added(value.b), found.indices)
        return tirx.BufferStore(found.buffer, inside(value), found.indices)

    return tvm_ffi.structural_map(func, (tirx.BufferStore, store), order="post")


def _is_power_of_two(value: Any) -> bool:
    return isinstance(value, tirx.FloatImm) and abs(math.frexp(float(value.value))[0]) == 0.5


def _reads(value: Any, buffer: Any) -> bool:
    return isinstance(value, tvm.ir.expr.TensorLoad) and bool(value.source.same_as(buffer))


def rounded_by_llvm(product: Any) -> Any:
    """The product as a fused multiply-add of -0, which changes no number, and which LLVM fuses with nothing else.

    It does not see what the constant is. A fence around the product would keep loops from being vectorised, and
    ``llvm.canonicalize`` would multiply again. This takes as long as the product alone.
    """
    dtype = str(product.ty.dtype)
    zero = tirx.call_llvm_pure_intrin(dtype, "llvm.arithmetic.fence", tirx.FloatImm(dtype, -0.0))
    return tirx.call_llvm_pure_intrin(dtype, "llvm.fmuladd", product.a, product.b, zero)


def rounded_in_cuda(product: Any) -> Any:
    """The product by the function of CUDA that the compiler fuses with nothing."""
    dtype = str(product.ty.dtype)
    return tirx.call_pure_extern(dtype, _CUDA[dtype], product.a, product.b)
