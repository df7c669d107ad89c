"""Operations handed to the C API."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from collage.backends.chains.functions import DnnlAlgorithm
from collage.backends.chains.strided import Strided
from collage.backends.onednn_kernels.description import Blocked, Packed
from collage.backends.onednn_kernels.handles import engine, extents, memory_desc
from collage.backends.onednn_kernels.library import library
from collage.backends.onednn_kernels.operations import (
    Combination,
    Convolution,
    Function,
    LayerNorm,
    MatMul,
    Operation,
    Pooling,
    Reorder,
    Rescale,
    Softmax,
)

_INFERENCE = 96  # dnnl_prop_kind_t
_USE_SCALE, _USE_SHIFT = 2, 4  # dnnl_normalization_flags_t

_Call = tuple[str, Sequence[Any]]
"""The kind of a primitive, and the arguments between the descriptor that is made and the attributes.

Descriptions stand for their memory descriptors.
"""


def create(made: ctypes.c_void_p, operation: Operation, attr: int) -> int:
    """Make the primitive descriptor in ``made``. Returns the C API's status."""
    kind, arguments = _CALLS[type(operation)](operation)
    described = [
        memory_desc(each) if isinstance(each, (Strided, Blocked, Packed)) else None for each in arguments
    ]
    values = (each if desc is None else desc.value for each, desc in zip(arguments, described, strict=True))
    status: int = getattr(library().c, f"dnnl_{kind}_primitive_desc_create")(
        ctypes.byref(made), *values, attr
    )
    return status


def _convolution(op: Convolution) -> _Call:
    kind, algorithm = (
        ("deconvolution_forward", DnnlAlgorithm.DECONVOLUTION)
        if op.transposed
        else ("convolution_forward", DnnlAlgorithm.CONVOLUTION)
    )
    numbers = op.strides, [d - 1 for d in op.dilation], op.pad_begin, op.pad_end
    tensors = op.src, op.weights, op.bias, op.dst
    return kind, [engine(), _INFERENCE, algorithm, *tensors, *map(extents, numbers)]


def _pooling(op: Pooling) -> _Call:
    numbers = op.strides, op.kernel, [d - 1 for d in op.dilation], op.pad_begin, op.pad_end
    return "pooling_forward", [*(engine(), _INFERENCE, op.algorithm, op.src, op.dst, *map(extents, numbers))]


def _layer_norm(op: LayerNorm) -> _Call:
    flags = _USE_SCALE | _USE_SHIFT
    return "layer_normalization_forward", [*(engine(), _INFERENCE, op.src, op.dst, None, op.epsilon, flags)]


def _reorder(op: Reorder | Rescale) -> _Call:
    return "reorder", [op.src, engine(), op.dst, engine()]


_CALLS: dict[type, Callable[[Any], _Call]] = {
    Convolution: _convolution,
    MatMul: lambda op: ("matmul", [engine(), op.src, op.weights, op.bias, op.dst]),
    Pooling: _pooling,
    Function: lambda op: (
        "eltwise_forward",
        [engine(), _INFERENCE, op.algorithm, op.src, op.dst, op.alpha, op.beta],
    ),
    Combination: lambda op: ("binary", [engine(), op.algorithm, op.src, op.second, op.dst]),
    Softmax: lambda op: ("softmax_forward", [engine(), _INFERENCE, op.algorithm, op.src, op.dst, op.axis]),
    LayerNorm: _layer_norm,
    Reorder: _reorder,
    Rescale: _reorder,
}
