"""The interface of cuDNN 9 for single convolutions, by ctypes: descriptors, what its heuristic offers, and calls.

NVIDIA recommends its graph interface for new programs. This one has a function for each thing that is needed here, and
has not changed since version 7.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from collage.backends.base import UnsupportedError
from collage.backends.cuda_kernels.wheel import load_library, version_of
from collage.backends.cudnn_kernels.description import Convolution
from collage.core.cuda_driver import driver

__all__ = ["Algorithm", "CudnnError", "Handles", "call", "handle", "library", "version"]

NAME = "libcudnn.so.9"
_FLOAT, _NCHW, _CROSS_CORRELATION, _RELU, _PROPAGATE_NAN = 0, 0, 1, 1, 1
_FMA_MATH = 3
"""CUDNN_FMA_MATH: no tensor cores, and so no TF32."""
_MOST_WORKSPACE = 1 << 30
_ALGORITHMS = 8


class CudnnError(RuntimeError):
    """cuDNN refuses a call. The message names the call and the status."""


class _Result(ctypes.Structure):
    """What the heuristic gives for each algorithm (``cudnnConvolutionFwdAlgoPerf_t``)."""

    _fields_ = (
        ("algorithm", ctypes.c_int),
        ("status", ctypes.c_int),
        ("time", ctypes.c_float),
        ("memory", ctypes.c_size_t),
        ("determinism", ctypes.c_int),
        ("math", ctypes.c_int),
        ("reserved", ctypes.c_int * 3),
    )


@dataclass(frozen=True)
class Algorithm:
    """The number of an algorithm, and the workspace that it takes."""

    number: int
    workspace_bytes: int


def version() -> str:
    """The library's version; see ``version_of``."""
    return version_of("nvidia-cudnn-cu13", NAME)


@cache
def library() -> Any:
    """Load the library, once. Raises OSError where it cannot be loaded."""
    return load_library(NAME)


@cache
def handle() -> int:
    """A handle in the driver's primary context. Raises CudnnError."""
    driver().enter()
    return _created("cudnnCreate")


def call(name: str, *arguments: Any) -> None:
    """Call a function of the library; integers are addresses and handles. Raises CudnnError."""
    pointers = (ctypes.c_void_p(each) if type(each) is int else each for each in arguments)
    if status := getattr(library(), name)(*pointers):
        raise CudnnError(f"{name}: status {status}")


class Handles:
    """The descriptors of one convolution. They need no GPU."""

    def __init__(self, description: Convolution) -> None:
        """Make the descriptors. Raises CudnnError."""
        self.description = description
        data, made = description.ends
        self.data, self.made = self._tensor(data), self._tensor(made)
        self.bias = self._tensor((1, description.result[1], *(1 for _ in description.pads)))
        self.filter = self._descriptor("Filter")
        shape = description.filter
        call(
            "cudnnSetFilterNdDescriptor",
            self.filter,
            _int(_FLOAT),
            _int(_NCHW),
            _int(len(shape)),
            _ints(shape),
        )
        self.convolution = self._descriptor("Convolution")
        sizes = (description.pads, description.strides, description.dilations)
        about = (_int(len(description.pads)), *map(_ints, sizes), _int(_CROSS_CORRELATION), _int(_FLOAT))
        call("cudnnSetConvolutionNdDescriptor", self.convolution, *about)
        call("cudnnSetConvolutionGroupCount", self.convolution, _int(description.groups))
        call("cudnnSetConvolutionMathType", self.convolution, _int(_FMA_MATH))
        self.activation = self._descriptor("Activation")
        settings = _int(_RELU), _int(_PROPAGATE_NAN), ctypes.c_double(0.0)
        call("cudnnSetActivationDescriptor", self.activation, *settings)

    @property
    def result(self) -> int:
        """The descriptor of the result."""
        return self.data if self.description.transposed else self.made

    def algorithms(self) -> list[Algorithm]:
        """What the heuristic offers for the GPU, the best by its estimate first.

        Raises UnsupportedError where it offers nothing.
        """
        results, count = (_Result * _ALGORITHMS)(), ctypes.c_int()
        rest = _int(_ALGORITHMS), ctypes.byref(count), results
        if self.description.transposed:
            ends = self.filter, self.made, self.convolution, self.data
            call("cudnnGetConvolutionBackwardDataAlgorithm_v7", handle(), *ends, *rest)
        else:
            ends = self.data, self.filter, self.convolution, self.made
            call("cudnnGetConvolutionForwardAlgorithm_v7", handle(), *ends, *rest)
        found = [
            Algorithm(each.algorithm, each.memory)
            for each in results[: count.value]
            if not each.status and each.math in (0, _FMA_MATH) and each.memory <= _MOST_WORKSPACE
        ]
        if not found:
            raise UnsupportedError("cuDNN has no algorithm for this convolution")
        return list(dict.fromkeys(found))

    def _tensor(self, shape: Sequence[int]) -> int:
        found = self._descriptor("Tensor")
        strides: list[int] = []
        step = 1
        for extent in reversed(shape):
            strides.insert(0, step)
            step *= extent
        about = _int(_FLOAT), _int(len(shape)), _ints(shape), _ints(strides)
        call("cudnnSetTensorNdDescriptor", found, *about)
        return found

    def _descriptor(self, kind: str) -> int:
        found = _created(f"cudnnCreate{kind}Descriptor")
        destroy = getattr(library(), f"cudnnDestroy{kind}Descriptor")
        weakref.finalize(self, destroy, ctypes.c_void_p(found)).atexit = False
        return found


def _created(name: str) -> int:
    found = ctypes.c_void_p()
    call(name, ctypes.byref(found))
    return found.value or 0


def _int(value: int) -> Any:
    return ctypes.c_int(value)


def _ints(values: Sequence[int]) -> Any:
    return (ctypes.c_int * len(values))(*values)
