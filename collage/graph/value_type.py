"""Types of values in files, and of values that Collage passes on: dynamic shapes, strings, sequences and optionals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from collage.core.typed import MalformedError, shown, typed
from collage.graph.dataflow import TensorType, np_dtype
from collage.graph.given_array import MismatchError, cast_hint, given_array, given_texts

_NUMPY = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128"
_OTHERS = (
    "bfloat16 int2 int4 uint2 uint4 float4_e2m1fn float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn "
    "float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu"
)
DTYPES = frozenset(f"{_NUMPY} {_OTHERS}".split())
"""Numpy's names of the dtypes of tensors, without those of objects, records and dates."""

MOST_BYTES = 1 << 47
"""A size that no machine's memory exceeds; sums of a few such numbers are far from overflowing 64 bits."""

TENSOR, SEQUENCE, OPTIONAL = "tensor", "sequence", "optional"

STRING = "string"
"""The dtype of text; its arrays hold Python strings (dtype object)."""


@dataclass(frozen=True)
class ValueType:
    """The type of a value; ``kind`` is TENSOR, SEQUENCE, OPTIONAL, or the name of another ONNX type.

    A tensor has a ``dtype`` (numpy's name, or STRING) and a ``shape``, in which an unknown extent is None. The shape is
    None if the rank is unknown. Sequences and optionals have an ``element``.
    """

    kind: str
    dtype: str = ""
    shape: tuple[int | None, ...] | None = None
    element: ValueType | None = None

    def __str__(self) -> str:
        if self.kind != TENSOR:
            return self.kind if self.element is None else f"{self.kind}({self.element})"
        if self.shape is None:
            return f"{self.dtype}[...]"
        return f"{self.dtype}[{'x'.join('?' if e is None else str(e) for e in self.shape)}]"

    def check(self, value: Any) -> Any:
        """Convert a value to what engines take: arrays for tensors, lists for sequences. Raises MismatchError."""
        if self.kind == OPTIONAL and self.element is not None:
            return None if value is None else self.element.check(value)
        if self.kind == SEQUENCE and self.element is not None:
            if not isinstance(value, (list, tuple)):
                raise MismatchError(f"is a {type(value).__name__}, the model takes a list of {self.element}")
            return [self.element.check(each) for each in value]
        return self._tensor(value) if self.kind == TENSOR else value

    def _tensor(self, value: Any) -> Any:
        if self.dtype == STRING:
            array = given_texts(value)
        else:
            array = given_array(value, np_dtype(self.dtype))
            if array.dtype != np_dtype(self.dtype):
                raise MismatchError(
                    f"has dtype {array.dtype}, the model takes {self.dtype}: convert it with "
                    f"{cast_hint(value, self.dtype)}"
                )
        if self.shape is not None and not (
            len(self.shape) == array.ndim
            and all(e in (None, found) for e, found in zip(self.shape, array.shape, strict=True))
        ):
            if array.ndim == len(self.shape) == 2 and self.shape[0] is None:
                raise MismatchError(f"has {array.shape[1]} columns, the model takes {self.shape[1]}: {self}")
            raise MismatchError(f"has shape {'x'.join(map(str, array.shape)) or 'scalar'}, the model takes {self}")
        return array

    def to_json(self) -> dict[str, Any]:
        """Plain values for the module file."""
        element = None if self.element is None else self.element.to_json()
        shape = None if self.shape is None else list(self.shape)
        return {"kind": self.kind, "dtype": self.dtype, "shape": shape, "element": element}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> ValueType:
        """The inverse of ``to_json``. Raises ValueError for anything else."""
        found = typed(ValueType, data)
        inner: ValueType | None = found
        while inner is not None:
            if inner.kind == TENSOR and inner.dtype != STRING:
                read_type([extent or 0 for extent in inner.shape or ()], inner.dtype)
            inner = inner.element
        return found


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
