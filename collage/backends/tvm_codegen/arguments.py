"""Arguments of compiled functions as TVM's calling convention has them, made without TVM."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

from collage.backends.tvm_codegen.artifact import Array

__all__ = ["Arguments", "arguments_of"]

_TENSOR_POINTER = 7  # kTVMFFIDLTensorPtr
_HOST = 1  # kDLCPU
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
"""DLPack's codes of numpy's kinds of dtypes."""


class _Any(ctypes.Structure):
    """The struct TVMFFIAny."""

    _fields_ = (("type_index", ctypes.c_int32), ("padding", ctypes.c_uint32), ("value", ctypes.c_void_p))


class _Tensor(ctypes.Structure):
    """The struct DLTensor. Without strides it is compact, in row-major order."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


@dataclass(frozen=True, eq=False)
class Arguments:
    """The arguments of a call at ``address``, and a place for its result. They are there while this object lives."""

    address: int
    result: int
    kept: tuple[object, ...]


def arguments_of(arrays: Sequence[Array]) -> Arguments:
    """A call's arguments: C-contiguous arrays in the host's memory. The memory of the arrays is kept, too."""
    shapes = [(ctypes.c_int64 * array.ndim)(*array.shape) for array in arrays]
    tensors = (_Tensor * len(arrays))(
        *(
            _Tensor(
                *(array.ctypes.data, _HOST, 0, array.ndim),
                *(_CODES[array.dtype.kind], 8 * array.dtype.itemsize, 1),
                *(ctypes.addressof(shape), None, 0),
            )
            for array, shape in zip(arrays, shapes, strict=True)
        )
    )
    start, size = ctypes.addressof(tensors), ctypes.sizeof(_Tensor)
    arguments = (_Any * len(arrays))(
        *(_Any(_TENSOR_POINTER, 0, start + size * number) for number in range(len(arrays)))
    )
    result = _Any()
    kept = (arguments, tensors, shapes, result, tuple(arrays))
    return Arguments(ctypes.addressof(arguments), ctypes.addressof(result), kept)
