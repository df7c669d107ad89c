"""Reading a match as a convolution for cuDNN: factors and terms of channels, a residual and a relu after it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from collage.backends.base import UnsupportedError
from collage.backends.chains.chain import Floats, read_chain
from collage.backends.chains.conv import Conv, conv_of, scaled
from collage.backends.chains.epilogue import Activation, Epilogue, read_epilogue
from collage.backends.chains.fold import fold
from collage.backends.cudnn_kernels.description import Convolution
from collage.frontend.subgraph import Subgraph

__all__ = ["ROOTS", "CudnnTask", "task_of"]

ROOTS = frozenset({f"nn.conv{n}d{suffix}" for n in (2, 3) for suffix in ("", "_transpose")})


@dataclass(frozen=True)
class CudnnTask:
    """The description, the constants as cuDNN reads them, and which inputs are the data and the residual."""

    description: Convolution
    data: int
    residual: int | None
    weights: Floats
    bias: Floats | None


def task_of(subgraph: Subgraph) -> CudnnTask:
    """The subgraph as a convolution, parsed once. Raises UnsupportedError when it is none that cuDNN takes."""
    return subgraph.parsed(_read)


def _read(subgraph: Subgraph) -> CudnnTask:
    if subgraph.operators[0].op not in ROOTS:
        raise UnsupportedError(f"cuDNN gets no {subgraph.operators[0].op}")
    chain, conv = subgraph.parsed(read_chain), conv_of(subgraph)
    data = chain.root.inputs[0]
    if chain.viewed or chain.graph.is_constant(data):
        raise UnsupportedError("the result is reshaped, or the data is a constant")
    folded = fold(chain, conv.dst, 1)
    epilogue = read_epilogue(chain, folded.epilogue, conv.dst)
    conv = scaled(conv, folded.scale, folded.bias)
    weights = _transposed(conv) if conv.transposed else conv.weights
    described = Convolution(
        conv.src,
        tuple(int(each) for each in weights.shape),
        conv.dst,
        conv.pad_begin,
        conv.strides,
        conv.dilation,
        conv.groups,
        conv.transposed,
        conv.bias is not None,
        epilogue.residual is not None,
        _relu(epilogue),
    )
    if problem := described.problem():
        raise UnsupportedError(f"cuDNN takes no such convolution: {problem}")
    place = chain.inputs.index
    residual = None if epilogue.residual is None else place(epilogue.residual)
    return CudnnTask(described, place(data), residual, np.ascontiguousarray(weights), conv.bias)


def _transposed(conv: Conv) -> Floats:
    """The weights of a transposed convolution as (inputs, outputs / groups, spatial...)."""
    outputs, inputs = conv.weights.shape[:2]
    grouped = conv.weights.reshape(conv.groups, outputs // conv.groups, *conv.weights.shape[1:])
    swapped = np.ascontiguousarray(grouped.swapaxes(1, 2))
    return swapped.reshape(conv.groups * inputs, outputs // conv.groups, *conv.weights.shape[2:])


def _relu(epilogue: Epilogue) -> bool:
    """Whether there is a relu. Raises UnsupportedError for what no call of cuDNN does."""
    clamp, none = (epilogue.low, epilogue.high), (-math.inf, math.inf)
    if epilogue.activation is not Activation.NONE or clamp not in (none, (0.0, math.inf)):
        raise UnsupportedError(
            f"no {epilogue.activation.name.lower()} and clamp to {clamp} after a convolution"
        )
    if epilogue.residual is not None and (not epilogue.residual_first or clamp == none):
        raise UnsupportedError("cuDNN adds a residual before a relu only")
    return clamp != none
