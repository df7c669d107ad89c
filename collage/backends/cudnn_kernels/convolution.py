"""Convolutions of one to three axes, grouped and transposed, with what follows them, as graphs for cuDNN.

One of a single axis becomes one of two, the first of which has one element. A transposed convolution is the gradient of
a convolution with regard to its data: the graph tells of the convolution that leads from its result back to its input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from collage.backends.base import UnsupportedError
from collage.backends.chains.chain import Floats, read_float_chain
from collage.backends.chains.conv import Conv, conv_of, scaled
from collage.backends.chains.epilogue import Epilogue, read_epilogue
from collage.backends.chains.linear_fold import fold
from collage.backends.cuda_kernels.precisions import precision_of
from collage.backends.cudnn_kernels.axes import end_padding, lifted
from collage.backends.cudnn_kernels.epilogue import append, steps_of
from collage.backends.cudnn_kernels.graph import CONVOLUTION, GRADIENT, Windows
from collage.backends.cudnn_kernels.lowered import CudnnTask, Lowered, Lowering
from collage.frontend.subgraph import Subgraph
from collage.graph.formats import StorageFormat
from collage.graph.storage import BF16, CHANNELS_LAST, FP16, PLAIN, TF32

__all__ = ["CONVOLUTIONS", "ConvolutionTask", "read_convolution"]

CONVOLUTIONS = frozenset(f"nn.conv{n}d{suffix}" for n in (1, 2, 3) for suffix in ("", "_transpose"))


@dataclass(frozen=True)
class ConvolutionTask(CudnnTask):
    """A convolution with its constants, its epilogue, and which inputs are the data and the residual."""

    formats: ClassVar = (PLAIN.format, CHANNELS_LAST.format)
    precisions: ClassVar = (TF32, FP16, BF16)
    transformed: ClassVar = True

    conv: Conv = field(compare=False)
    epilogue: Epilogue
    data: int
    residual: int | None

    def lower(self, format: StorageFormat, precision: str) -> Sequence[Lowered]:
        """One graph: the convolution, and a function of each element for each part of the epilogue."""
        conv = self.conv
        lowering = Lowering(format, precision)
        source = lowering.input(lifted(conv.src), self.data)
        weights = lowering.constant(_filter(conv))
        shape = lifted(conv.dst)
        residual = None if self.residual is None else lowering.input(shape, self.residual)
        bias = None
        if conv.bias is not None:
            bias = lowering.constant(conv.bias.reshape(1, -1, *(1 for _ in shape[2:])))
        steps = list(steps_of(lowering, self.epilogue, bias, residual))
        output = lowering.output(shape)
        made = lowering.virtual(shape) if steps else output
        kind = GRADIENT if conv.transposed else CONVOLUTION
        lowering.maker.slide(kind, (source, weights), made, _windows(conv))
        if steps:
            append(lowering, made, steps, output)
        return (lowering.done(),)


def read_convolution(subgraph: Subgraph) -> ConvolutionTask:
    """The subgraph as a convolution. Raises UnsupportedError when it is none that cuDNN takes."""
    chain, conv = subgraph.parsed(read_float_chain), conv_of(subgraph)
    data = chain.root.inputs[0]
    if chain.viewed or chain.graph.is_constant(data):
        raise UnsupportedError("the result is reshaped, or the data is a constant")
    folded = fold(chain, conv.dst, 1)
    epilogue = read_epilogue(chain, folded.epilogue, conv.dst)
    conv = scaled(conv, folded.scale, folded.bias)
    if conv.transposed and (conv.bias is not None or epilogue != Epilogue()):
        raise UnsupportedError("cuDNN has no engine for what follows a transposed convolution")
    place = chain.inputs.index
    residual = None if epilogue.residual is None else place(epilogue.residual)
    return ConvolutionTask(conv, epilogue, place(data), residual, own=precision_of(chain.dtype))


def _filter(conv: Conv) -> Floats:
    """The weights as (outputs, inputs / groups, spatial...) of the convolution that cuDNN is told of."""
    weights = conv.weights
    if conv.transposed:
        outputs, inputs = weights.shape[:2]
        grouped = weights.reshape(conv.groups, outputs // conv.groups, *weights.shape[1:])
        swapped = np.ascontiguousarray(grouped.swapaxes(1, 2))
        weights = swapped.reshape(conv.groups * inputs, outputs // conv.groups, *weights.shape[2:])
    return weights.reshape(lifted(weights.shape))


def _windows(conv: Conv) -> Windows:
    extra = [0] if len(conv.strides) == 1 else []
    end = [end_padding(conv.strides[at], conv.pad_begin[at], conv.pad_end[at]) for at in range(len(conv.strides))]
    ones = [1 for _ in extra]
    return Windows((*extra, *conv.pad_begin), (*extra, *end), (*ones, *conv.strides), (*ones, *conv.dilation))
