"""cuBLASLt by ctypes: descriptors, the algorithms that its heuristic offers, and products on a stream.

The numbers of attributes are those of CUDA 13's headers.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from collage.backends.base import UnsupportedError
from collage.backends.cublas_kernels.description import Description, Matrix
from collage.backends.cuda_kernels.wheel import load_library, version_of
from collage.core.cuda_driver import driver

__all__ = ["ALGORITHM_BYTES", "DTYPES", "CublasAlgorithm", "CublasError", "Handles", "library", "version"]

NAME = "libcublasLt.so.13"
ALGORITHM_BYTES = 64
"""The size of ``cublasLtMatmulAlgo_t``."""

DTYPES = {"float32": 0, "float16": 2, "bfloat16": 14}
"""``cudaDataType_t`` of matrices."""
_FLOAT32 = 0
_COMPUTE_32F = 68
"""CUBLAS_COMPUTE_32F: float32 sums, and no TF32."""
_COMPUTE_TF32 = 77
"""CUBLAS_COMPUTE_32F_FAST_TF32: float32 sums of factors that are rounded to TF32."""
_TRANSPOSE = 1
_LAYOUT_BATCH, _LAYOUT_STRIDE = 5, 6
_TRANSA, _TRANSB, _EPILOGUE, _BIAS = 3, 4, 7, 8
_EPILOGUES = {
    ("", False): 1,
    ("relu", False): 2,
    ("", True): 4,
    ("relu", True): 6,
    ("gelu", False): 32,
    ("gelu", True): 36,
}
_WORKSPACE, _REDUCTIONS = 1, 3
_WIDE_SUMS = 2
"""CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE: sums of several parts are added in float32, and not as results are stored.

Algorithms that sum in one part are offered with every mask."""
_ALIGNMENTS = (5, 6, 7, 8)
_NOT_SUPPORTED = 15
WORKSPACE_BYTES = 32 << 20
"""The most memory that an algorithm may take besides its operands; cuBLAS itself takes as much on an H100."""
_ALIGNMENT = 64
"""What buffers are aligned to, in bytes."""


_ALLOC_FAILED = 3
"""CUBLAS_STATUS_ALLOC_FAILED: there is too little memory on the GPU."""


class CublasError(RuntimeError):
    """cuBLASLt refuses a call. The message names the call and the status."""


class _Result(ctypes.Structure):
    """What the heuristic gives for each algorithm (``cublasLtMatmulHeuristicResult_t``)."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


@dataclass(frozen=True)
class CublasAlgorithm:
    """The bytes of a ``cublasLtMatmulAlgo_t``, and the workspace that it takes."""

    data: bytes
    workspace_bytes: int


def version() -> str:
    """The library's version; see ``version_of``."""
    return version_of("nvidia-cublas", NAME)


@cache
def library() -> Any:
    """Load the library, once. Raises OSError where it cannot be loaded."""
    found = load_library(NAME)
    pointers = ctypes.c_void_p
    found.cublasLtMatmul.argtypes = (*(pointers,) * 14, ctypes.c_size_t, pointers)
    found.cublasLtMatmulDescCreate.argtypes = (pointers, ctypes.c_int, ctypes.c_int)
    found.cublasLtMatmulDescSetAttribute.argtypes = (pointers, ctypes.c_int, pointers, ctypes.c_size_t)
    found.cublasLtMatmulDescDestroy.argtypes = (pointers,)
    found.cublasLtMatrixLayoutCreate.argtypes = (
        *(pointers, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64),
    )
    found.cublasLtMatrixLayoutSetAttribute.argtypes = (pointers, ctypes.c_int, pointers, ctypes.c_size_t)
    found.cublasLtMatrixLayoutDestroy.argtypes = (pointers,)
    found.cublasLtMatmulPreferenceCreate.argtypes = (pointers,)
    found.cublasLtMatmulPreferenceSetAttribute.argtypes = (pointers, ctypes.c_int, pointers, ctypes.c_size_t)
    found.cublasLtMatmulPreferenceDestroy.argtypes = (pointers,)
    found.cublasLtMatmulAlgoGetHeuristic.argtypes = (*(pointers,) * 7, ctypes.c_int, pointers, pointers)
    found.cublasLtCreate.argtypes = (pointers,)
    return found


@cache
def handle() -> int:
    """A handle in the driver's primary context. Raises CublasError."""
    driver().enter()
    found = ctypes.c_void_p()
    _checked("cublasLtCreate", library().cublasLtCreate(ctypes.byref(found)))
    return found.value or 0


class Handles:
    """The descriptors of one product. They need no GPU."""

    def __init__(self, description: Description) -> None:
        """Make the descriptors. Raises CublasError."""
        self.description = description
        code = DTYPES[description.dtype]
        compute = _COMPUTE_TF32 if description.tf32 else _COMPUTE_32F
        self.operation = _created("cublasLtMatmulDesc", compute, _FLOAT32)
        weakref.finalize(self, library().cublasLtMatmulDescDestroy, self.operation).atexit = False
        for attribute, transposed in (
            (_TRANSA, description.transposed_a),
            (_TRANSB, description.transposed_b),
        ):
            if transposed:
                self._set(attribute, ctypes.c_int32(_TRANSPOSE))
        self._set(_EPILOGUE, ctypes.c_uint32(_EPILOGUES[description.activation, description.bias]))
        self.layouts = [self._layout(each, code) for each in (description.a, description.b, description.d)]

    def set_bias(self, address: int) -> None:
        """Where the bias lies in the GPU's memory."""
        self._set(_BIAS, ctypes.c_uint64(address))

    def algorithms(self, most: int) -> list[CublasAlgorithm]:
        """What the heuristic offers for the GPU, the best by its estimate first. Raises UnsupportedError for nothing.

        It wants to know that there is a bias, so ``set_bias`` comes before.
        """
        lt = library()
        preference = _created("cublasLtMatmulPreference")
        try:
            _set_attribute("cublasLtMatmulPreference", preference, _WORKSPACE, ctypes.c_uint64(WORKSPACE_BYTES))
            if self.description.dtype != "float32":
                _set_attribute("cublasLtMatmulPreference", preference, _REDUCTIONS, ctypes.c_uint32(_WIDE_SUMS))
            for attribute, alignment in zip(_ALIGNMENTS, self._alignments(), strict=True):
                _set_attribute("cublasLtMatmulPreference", preference, attribute, ctypes.c_uint32(alignment))
            results, count = (_Result * most)(), ctypes.c_int()
            a, b, d = self.layouts
            status = lt.cublasLtMatmulAlgoGetHeuristic(
                *(handle(), self.operation, a, b, d, d, preference),
                *(most, results, ctypes.byref(count)),
            )
        finally:
            lt.cublasLtMatmulPreferenceDestroy(preference)
        if status != _NOT_SUPPORTED:
            _checked("cublasLtMatmulAlgoGetHeuristic", status)
        if status or not count.value:
            raise UnsupportedError("cuBLASLt has no algorithm for this product")
        found = [each for each in results[: count.value] if not each.state]
        return [CublasAlgorithm(bytes(each.algorithm), each.workspace) for each in found]

    def _alignments(self) -> Sequence[int]:
        """What A, B, C and D are aligned to in every call, in bytes."""
        size = 4 if self.description.dtype == "float32" else 2
        a, b, d = (
            math.gcd(_ALIGNMENT, *(size * starts[place] for starts in self.description.starts)) for place in range(3)
        )
        return a, b, d, d

    def _layout(self, matrix: Matrix, code: int) -> int:
        shape = matrix.rows, matrix.columns, matrix.leading
        found = _created("cublasLtMatrixLayout", code, *shape)
        weakref.finalize(self, library().cublasLtMatrixLayoutDestroy, found).atexit = False
        batch = ctypes.c_int32(self.description.batch)
        _set_attribute("cublasLtMatrixLayout", found, _LAYOUT_BATCH, batch)
        _set_attribute("cublasLtMatrixLayout", found, _LAYOUT_STRIDE, ctypes.c_int64(matrix.batch_stride))
        return found

    def _set(self, attribute: int, value: Any) -> None:
        _set_attribute("cublasLtMatmulDesc", self.operation, attribute, value)


def _created(kind: str, *arguments: int) -> int:
    found = ctypes.c_void_p()
    name = f"{kind}Create"
    _checked(name, getattr(library(), name)(ctypes.byref(found), *arguments))
    return found.value or 0


def _set_attribute(kind: str, descriptor: int, attribute: int, value: Any) -> None:
    name = f"{kind}SetAttribute"
    size = ctypes.sizeof(value)
    _checked(name, getattr(library(), name)(descriptor, attribute, ctypes.byref(value), size))


def _checked(name: str, status: int) -> None:
    if status:
        short = " (out of memory of the GPU)" if status == _ALLOC_FAILED else ""
        raise CublasError(f"{name}: status {status}{short}")


def check_product(status: int) -> None:
    """Raise CublasError unless a product could be enqueued."""
    _checked("cublasLtMatmul", status)
