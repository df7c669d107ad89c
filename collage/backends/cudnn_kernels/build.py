"""Descriptors of a graph: one for each tensor and operation, and the one of the operation graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from collage.backends.cudnn_kernels.enums import (
    Attribute,
    ConvolutionMode,
    Data,
    Function,
    Kind,
    NanPropagation,
    Norm,
    Padding,
    Phase,
    Reduction,
    Resampling,
    Type,
)
from collage.backends.cudnn_kernels.graph import (
    ATTENTION,
    CONVOLUTION,
    GRADIENT,
    NORMALISATION,
    POINTWISE,
    PRODUCT,
    REDUCTION,
    SCALAR,
    SOFTMAX,
    VIRTUAL,
    WINDOWS,
    CudnnGraph,
    Operation,
    Tensor,
)
from collage.backends.cudnn_kernels.library import Descriptor

__all__ = ["build"]

_DTYPES = {"float32": Data.FLOAT, "float16": Data.HALF, "bfloat16": Data.BFLOAT16}
_ALIGNMENT = 16
"""What tensors are aligned to, in bytes. Buffers are aligned to more."""

_Tensors = list[Descriptor]


def build(graph: CudnnGraph, handle: int | None) -> Descriptor:
    """The operation graph, finalised. It takes no handle where the device is only described.

    Raises CudnnError, and UnsupportedError for what the library does not take.
    """
    tensors = [_tensor(number + 1, each) for number, each in enumerate(graph.tensors)]
    made = Descriptor(Kind.OPERATIONGRAPH)
    if handle is not None:
        made.set(Attribute.OPERATIONGRAPH_HANDLE, Type.HANDLE, handle)
    operations = [_MAKERS[each.kind](each, tensors) for each in graph.operations]
    made.set(Attribute.OPERATIONGRAPH_OPS, Type.BACKEND_DESCRIPTOR, *operations)
    return made.finalize()


def _tensor(number: int, tensor: Tensor) -> Descriptor:
    made = Descriptor(Kind.TENSOR)
    made.set(Attribute.TENSOR_UNIQUE_ID, Type.INT64, number)
    made.set(Attribute.TENSOR_DATA_TYPE, Type.DATA_TYPE, _DTYPES[tensor.dtype])
    made.set(Attribute.TENSOR_BYTE_ALIGNMENT, Type.INT64, _ALIGNMENT)
    made.set(Attribute.TENSOR_DIMENSIONS, Type.INT64, *tensor.shape)
    made.set(Attribute.TENSOR_STRIDES, Type.INT64, *tensor.strides)
    made.set(Attribute.TENSOR_IS_VIRTUAL, Type.BOOLEAN, tensor.role == VIRTUAL)
    made.set(Attribute.TENSOR_IS_BY_VALUE, Type.BOOLEAN, tensor.role == SCALAR)
    return made.finalize()


def _operation(kind: Kind, tensors: Mapping[Attribute, Descriptor]) -> Descriptor:
    made = Descriptor(kind)
    for attribute, each in tensors.items():
        made.set(attribute, Type.BACKEND_DESCRIPTOR, each)
    return made


def _convolution(operation: Operation, tensors: _Tensors) -> Descriptor:
    about = operation.windows
    assert about is not None
    settings = Descriptor(Kind.CONVOLUTION)
    settings.set(Attribute.CONVOLUTION_COMP_TYPE, Type.DATA_TYPE, Data.FLOAT)
    mode = ConvolutionMode.CROSS_CORRELATION
    settings.set(Attribute.CONVOLUTION_CONV_MODE, Type.CONVOLUTION_MODE, mode)
    settings.set(Attribute.CONVOLUTION_SPATIAL_DIMS, Type.INT64, len(about.strides))
    settings.set(Attribute.CONVOLUTION_PRE_PADDINGS, Type.INT64, *about.begin)
    settings.set(Attribute.CONVOLUTION_POST_PADDINGS, Type.INT64, *about.end)
    settings.set(Attribute.CONVOLUTION_FILTER_STRIDES, Type.INT64, *about.strides)
    settings.set(Attribute.CONVOLUTION_DILATIONS, Type.INT64, *about.dilations)
    settings.finalize()
    source, weights = (tensors[at] for at in operation.inputs)
    result = tensors[operation.output]
    if operation.kind == CONVOLUTION:
        made = _operation(
            Kind.OPERATION_CONVOLUTION_FORWARD,
            {
                Attribute.OPERATION_CONVOLUTION_FORWARD_CONV_DESC: settings,
                Attribute.OPERATION_CONVOLUTION_FORWARD_X: source,
                Attribute.OPERATION_CONVOLUTION_FORWARD_W: weights,
                Attribute.OPERATION_CONVOLUTION_FORWARD_Y: result,
            },
        )
        made.set(Attribute.OPERATION_CONVOLUTION_FORWARD_ALPHA, Type.FLOAT, 1.0)
        made.set(Attribute.OPERATION_CONVOLUTION_FORWARD_BETA, Type.FLOAT, 0.0)
    else:
        made = _operation(
            Kind.OPERATION_CONVOLUTION_BACKWARD_DATA,
            {
                Attribute.OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC: settings,
                Attribute.OPERATION_CONVOLUTION_BWD_DATA_DY: source,
                Attribute.OPERATION_CONVOLUTION_BWD_DATA_W: weights,
                Attribute.OPERATION_CONVOLUTION_BWD_DATA_DX: result,
            },
        )
        made.set(Attribute.OPERATION_CONVOLUTION_BWD_DATA_ALPHA, Type.FLOAT, 1.0)
        made.set(Attribute.OPERATION_CONVOLUTION_BWD_DATA_BETA, Type.FLOAT, 0.0)
    return made.finalize()


_NUMBERS = {
    Function.RELU_FWD: (
        Attribute.POINTWISE_RELU_LOWER_CLIP,
        Attribute.POINTWISE_RELU_UPPER_CLIP,
        Attribute.POINTWISE_RELU_LOWER_CLIP_SLOPE,
    ),
    Function.ELU_FWD: (Attribute.POINTWISE_ELU_ALPHA,),
    Function.SOFTPLUS_FWD: (Attribute.POINTWISE_SOFTPLUS_BETA,),
    Function.SWISH_FWD: (Attribute.POINTWISE_SWISH_BETA,),
}
"""What the numbers of a function are."""


def _pointwise(operation: Operation, tensors: _Tensors) -> Descriptor:
    function = Function[operation.function]
    settings = Descriptor(Kind.POINTWISE)
    settings.set(Attribute.POINTWISE_MODE, Type.POINTWISE_MODE, function)
    settings.set(Attribute.POINTWISE_MATH_PREC, Type.DATA_TYPE, Data.FLOAT)
    if function is Function.RELU_FWD:
        propagate = NanPropagation.PROPAGATE_NAN
        settings.set(Attribute.POINTWISE_NAN_PROPAGATION, Type.NAN_PROPOGATION, propagate)
    for attribute, number in zip(_NUMBERS.get(function, ()), operation.numbers, strict=False):
        settings.set(attribute, Type.DOUBLE, number)
    settings.finalize()
    ends = [tensors[at] for at in operation.inputs]
    names = Attribute.OPERATION_POINTWISE_XDESC, Attribute.OPERATION_POINTWISE_BDESC
    return _operation(
        Kind.OPERATION_POINTWISE,
        {
            Attribute.OPERATION_POINTWISE_PW_DESCRIPTOR: settings,
            **dict(zip(names, ends, strict=False)),
            Attribute.OPERATION_POINTWISE_YDESC: tensors[operation.output],
        },
    ).finalize()


def _windows(operation: Operation, tensors: _Tensors) -> Descriptor:
    about, mode = operation.windows, Resampling[operation.function]
    assert about is not None
    settings = Descriptor(Kind.RESAMPLE)
    settings.set(Attribute.RESAMPLE_MODE, Type.RESAMPLE_MODE, mode)
    settings.set(Attribute.RESAMPLE_COMP_TYPE, Type.DATA_TYPE, Data.FLOAT)
    propagate = NanPropagation.PROPAGATE_NAN
    settings.set(Attribute.RESAMPLE_NAN_PROPAGATION, Type.NAN_PROPOGATION, propagate)
    padding = Padding.NEG_INF_PAD if mode is Resampling.MAXPOOL else Padding.ZERO_PAD
    settings.set(Attribute.RESAMPLE_PADDING_MODE, Type.PADDING_MODE, padding)
    settings.set(Attribute.RESAMPLE_SPATIAL_DIMS, Type.INT64, len(about.sizes))
    for attribute, numbers in (
        (Attribute.RESAMPLE_WINDOW_DIMS, about.sizes),
        (Attribute.RESAMPLE_PRE_PADDINGS, about.begin),
        (Attribute.RESAMPLE_POST_PADDINGS, about.end),
        (Attribute.RESAMPLE_STRIDES, about.strides),
    ):
        settings.set(attribute, Type.FRACTION, *((each, 1) for each in numbers))
    settings.finalize()
    made = _operation(
        Kind.OPERATION_RESAMPLE_FWD,
        {
            Attribute.OPERATION_RESAMPLE_FWD_DESC: settings,
            Attribute.OPERATION_RESAMPLE_FWD_XDESC: tensors[operation.inputs[0]],
            Attribute.OPERATION_RESAMPLE_FWD_YDESC: tensors[operation.output],
        },
    )
    made.set(Attribute.OPERATION_RESAMPLE_FWD_ALPHA, Type.DOUBLE, 1.0)
    made.set(Attribute.OPERATION_RESAMPLE_FWD_BETA, Type.DOUBLE, 0.0)
    return made.finalize()


def _normalisation(operation: Operation, tensors: _Tensors) -> Descriptor:
    source, scale, *bias, epsilon = (tensors[at] for at in operation.inputs)
    made = _operation(
        Kind.OPERATION_NORM_FORWARD,
        {
            Attribute.OPERATION_NORM_FWD_XDESC: source,
            Attribute.OPERATION_NORM_FWD_SCALE_DESC: scale,
            **dict(zip((Attribute.OPERATION_NORM_FWD_BIAS_DESC,), bias, strict=False)),
            Attribute.OPERATION_NORM_FWD_EPSILON_DESC: epsilon,
            Attribute.OPERATION_NORM_FWD_YDESC: tensors[operation.output],
        },
    )
    made.set(Attribute.OPERATION_NORM_FWD_MODE, Type.NORM_MODE, Norm[operation.function])
    made.set(Attribute.OPERATION_NORM_FWD_PHASE, Type.NORM_FWD_PHASE, Phase.INFERENCE)
    return made.finalize()


def _reduction(operation: Operation, tensors: _Tensors) -> Descriptor:
    settings = Descriptor(Kind.REDUCTION)
    function = Reduction[operation.function]
    settings.set(Attribute.REDUCTION_OPERATOR, Type.REDUCTION_OPERATOR_TYPE, function)
    settings.set(Attribute.REDUCTION_COMP_TYPE, Type.DATA_TYPE, Data.FLOAT)
    return _operation(
        Kind.OPERATION_REDUCTION,
        {
            Attribute.OPERATION_REDUCTION_DESC: settings.finalize(),
            Attribute.OPERATION_REDUCTION_XDESC: tensors[operation.inputs[0]],
            Attribute.OPERATION_REDUCTION_YDESC: tensors[operation.output],
        },
    ).finalize()


def _product(operation: Operation, tensors: _Tensors) -> Descriptor:
    settings = Descriptor(Kind.MATMUL)
    settings.set(Attribute.MATMUL_COMP_TYPE, Type.DATA_TYPE, Data.FLOAT)
    left, right = (tensors[at] for at in operation.inputs)
    return _operation(
        Kind.OPERATION_MATMUL,
        {
            Attribute.OPERATION_MATMUL_DESC: settings.finalize(),
            Attribute.OPERATION_MATMUL_ADESC: left,
            Attribute.OPERATION_MATMUL_BDESC: right,
            Attribute.OPERATION_MATMUL_CDESC: tensors[operation.output],
        },
    ).finalize()


def _softmax(operation: Operation, tensors: _Tensors) -> Descriptor:
    return _operation(
        Kind.OPERATION_SOFTMAX,
        {
            Attribute.OPERATION_SOFTMAX_XDESC: tensors[operation.inputs[0]],
            Attribute.OPERATION_SOFTMAX_YDESC: tensors[operation.output],
        },
    ).finalize()


def _attention(operation: Operation, tensors: _Tensors) -> Descriptor:
    queries, keys, values, scale = (tensors[at] for at in operation.inputs)
    return _operation(
        Kind.OPERATION_SDPA_FWD,
        {
            Attribute.OPERATION_SDPA_FWD_QDESC: queries,
            Attribute.OPERATION_SDPA_FWD_KDESC: keys,
            Attribute.OPERATION_SDPA_FWD_VDESC: values,
            Attribute.OPERATION_SDPA_FWD_SCALEDESC: scale,
            Attribute.OPERATION_SDPA_FWD_ODESC: tensors[operation.output],
        },
    ).finalize()


_MAKERS: Mapping[str, Callable[[Operation, _Tensors], Descriptor]] = {
    CONVOLUTION: _convolution,
    GRADIENT: _convolution,
    POINTWISE: _pointwise,
    WINDOWS: _windows,
    NORMALISATION: _normalisation,
    REDUCTION: _reduction,
    PRODUCT: _product,
    SOFTMAX: _softmax,
    ATTENTION: _attention,
}
