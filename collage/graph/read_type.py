"""Reading tensor types from a file, with checks of what they claim."""

from __future__ import annotations

from typing import Any

from collage.core.typed import MalformedError, shown, typed
from collage.graph.dataflow import TensorType, np_dtype

_NUMPY = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128"
_OTHERS = (
    "bfloat16 int2 int4 uint2 uint4 float4_e2m1fn float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn "
    "float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu"
)
DTYPES = frozenset(f"{_NUMPY} {_OTHERS}".split())
"""Numpy's names of the dtypes of tensors, without those of objects, records and dates."""

MOST_BYTES = 1 << 47
"""A size that no machine's memory exceeds; sums of a few such numbers are far from overflowing 64 bits."""


def read_type(shape: Any, dtype: Any) -> TensorType:
    """The tensor type of that shape and dtype. Raises MalformedError for an invalid one, or one that is too large."""
    kind = TensorType(typed(tuple[int, ...], shape), typed(str, dtype))
    if dtype not in DTYPES:
        raise MalformedError(f"{shown(dtype)} is no dtype of tensors")
    if any(extent < 0 for extent in kind.shape):
        raise MalformedError(f"a tensor has the shape {shown(shape)}")
    try:
        np_dtype(kind.dtype)
    except AttributeError as error:
        raise MalformedError(f"the installed ml_dtypes has no {dtype}") from error
    if kind.nbytes > MOST_BYTES:
        raise MalformedError(f"a tensor of the shape {shown(shape)} takes {kind.nbytes} bytes")
    return kind
