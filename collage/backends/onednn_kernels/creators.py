"""Operations handed to the C API: one function for each kind of primitive descriptor."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from collage.backends.chains.functions import DnnlAlgorithm
from collage.backends.onednn_kernels.description import Description
from collage.backends.onednn_kernels.handles import Handle, engine, extents, memory_desc
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


def create(made: ctypes.c_void_p, operation: Operation, attr: int) -> int:
    """Make the primitive descriptor in ``made``. Returns the C API's status."""
    return _CREATORS[type(operation)](made, operation, attr)


_Creator = Callable[[ctypes.c_void_p, Any, int], int]


def _descs(*descriptions: Description | None) -> list[Handle | None]:
    return [None if each is None else memory_desc(each) for each in descriptions]


def _values(handles: Sequence[Handle | None]) -> list[int | None]:
    return [None if each is None else each.value for each in handles]


def _convolution(made: ctypes.c_void_p, op: Convolution, attr: int) -> int:
    descs = _descs(op.src, op.weights, op.bias, op.dst)
    c = library().c
    create, algorithm = (
        (c.dnnl_deconvolution_forward_primitive_desc_create, DnnlAlgorithm.DECONVOLUTION)
        if op.transposed
        else (c.dnnl_convolution_forward_primitive_desc_create, DnnlAlgorithm.CONVOLUTION)
    )
    gaps = extents([d - 1 for d in op.dilation])
    pads = extents(op.pad_begin), extents(op.pad_end)
    status: int = create(
        *(ctypes.byref(made), engine(), _INFERENCE, algorithm, *_values(descs)),
        *(extents(op.strides), gaps, *pads, attr),
    )
    return status


def _matmul(made: ctypes.c_void_p, op: MatMul, attr: int) -> int:
    descs = _descs(op.src, op.weights, op.bias, op.dst)
    status: int = library().c.dnnl_matmul_primitive_desc_create(
        ctypes.byref(made), engine(), *_values(descs), attr
    )
    return status


def _reorder(made: ctypes.c_void_p, op: Reorder | Rescale, attr: int) -> int:
    src, dst = memory_desc(op.src), memory_desc(op.dst)
    status: int = library().c.dnnl_reorder_primitive_desc_create(
        ctypes.byref(made), src.value, engine(), dst.value, engine(), attr
    )
    return status


def _pooling(made: ctypes.c_void_p, op: Pooling, attr: int) -> int:
    descs = _descs(op.src, op.dst)
    gaps = extents([d - 1 for d in op.dilation])
    status: int = library().c.dnnl_pooling_forward_primitive_desc_create(
        *(ctypes.byref(made), engine(), _INFERENCE, op.algorithm, *_values(descs), extents(op.strides)),
        *(extents(op.kernel), gaps, extents(op.pad_begin), extents(op.pad_end), attr),
    )
    return status


def _function(made: ctypes.c_void_p, op: Function, attr: int) -> int:
    descs = _descs(op.src, op.dst)
    status: int = library().c.dnnl_eltwise_forward_primitive_desc_create(
        *(ctypes.byref(made), engine(), _INFERENCE, op.algorithm, *_values(descs), op.alpha, op.beta, attr)
    )
    return status


def _combination(made: ctypes.c_void_p, op: Combination, attr: int) -> int:
    descs = _descs(op.src, op.second, op.dst)
    status: int = library().c.dnnl_binary_primitive_desc_create(
        ctypes.byref(made), engine(), op.algorithm, *_values(descs), attr
    )
    return status


def _softmax(made: ctypes.c_void_p, op: Softmax, attr: int) -> int:
    descs = _descs(op.src, op.dst)
    status: int = library().c.dnnl_softmax_forward_primitive_desc_create(
        *(ctypes.byref(made), engine(), _INFERENCE, op.algorithm, *_values(descs), op.axis, attr)
    )
    return status


def _layer_norm(made: ctypes.c_void_p, op: LayerNorm, attr: int) -> int:
    descs = _descs(op.src, op.dst)
    status: int = library().c.dnnl_layer_normalization_forward_primitive_desc_create(
        *(ctypes.byref(made), engine(), _INFERENCE, *_values(descs), None, op.epsilon),
        *(_USE_SCALE | _USE_SHIFT, attr),
    )
    return status


_CREATORS: dict[type, _Creator] = {
    Convolution: _convolution,
    MatMul: _matmul,
    Pooling: _pooling,
    Function: _function,
    Combination: _combination,
    Softmax: _softmax,
    LayerNorm: _layer_norm,
    Reorder: _reorder,
    Rescale: _reorder,
}
