"""A match as our own kernels see it: an operator and its epilogue, as a convolution or as a product."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Any

from collage.backends.base import UnsupportedError
from collage.backends.chains.chain import Chain, Combine, EpilogueOp, Floats, read_chain
from collage.backends.chains.conv import Conv, conv_of, scaled
from collage.backends.chains.epilogue import Epilogue, bounds, read_epilogue
from collage.backends.chains.functions import DnnlAlgorithm
from collage.backends.chains.linear_fold import Folded, fold
from collage.frontend.subgraph import Subgraph


@dataclass(frozen=True)
class NativeConvolution:
    """clamp(scale * conv(data) + residual, low, high); ``data`` and ``residual`` are values of the graph.

    Terms that follow the convolution are in the bias of ``conv``. Its weights are the model's; ``scale`` has the
    factors of the output channels.
    """

    conv: Conv
    scale: Floats | None
    data: int
    residual: int | None
    low: float
    high: float

    @property
    def scaled(self) -> Conv:
        """The convolution with the factors in its weights.

        It is computed on each use, since nobody but ``pack`` needs it, and weights are large.
        """
        return scaled(self.conv, self.scale, self.conv.bias)


@dataclass(frozen=True)
class NativeProduct:
    """``matrix`` is (K, N), ``scale`` has the factors of its columns, and ``bias`` the terms that follow."""

    data: int
    rows: int
    matrix: Floats
    scale: Floats | None
    bias: Floats | None
    epilogue: Epilogue

    @property
    def weights(self) -> Floats:
        """The matrix with the factors in it. It is computed on each use, since nobody but ``pack`` needs it."""
        return self.matrix if self.scale is None else self.matrix * self.scale

    @property
    def flop(self) -> int:
        """The number of floating-point operations."""
        return 2 * self.rows * self.matrix.size


@dataclass(frozen=True)
class NativeTask:
    """A chain, and the operator that it begins with. Every form of it is read on first use, and then kept.

    ``conv`` is None for what is no convolution.
    """

    chain: Chain
    conv: Conv | None

    @cached_property
    def folded(self) -> Folded:
        """The chain of a convolution with its linear part split off."""
        assert self.conv is not None
        return fold(self.chain, self.conv.dst, 1)

    @cached_property
    def convolution(self) -> NativeConvolution:
        """The chain as a convolution. Raises UnsupportedError when there is more to it."""
        assert self.conv is not None
        return _read_convolution(self.chain, self.conv, self.folded)

    @cached_property
    def product(self) -> NativeProduct:
        """The chain as a product with a constant matrix. Raises UnsupportedError when it is none."""
        return _read_product(self.chain)

    def numbers_of_convolution(self) -> dict[str, Any]:
        """What kernels of convolutions store of the epilogue and of their operands. Artifacts keep this order."""
        convolution = self.convolution
        return {
            "low": convolution.low,
            "high": convolution.high,
            "data": self.place(convolution.data),
            "residual": self.place(convolution.residual),
        }

    def numbers_of(self, product: NativeProduct) -> dict[str, Any]:
        """What kernels of products store of the epilogue and of their operands. Artifacts keep this order."""
        epilogue = product.epilogue
        return {
            "activation": epilogue.activation,
            "residual_first": epilogue.residual_first,
            "low": epilogue.low,
            "high": epilogue.high,
            "data": self.place(product.data),
            "residual": self.place(epilogue.residual),
        }

    def place(self, value: int | None) -> int | None:
        """The position of a value among the subgraph's inputs."""
        return None if value is None else self.chain.inputs.index(value)


def check_pixels(chain: Chain, conv: Conv) -> None:
    """Raises UnsupportedError for a convolution that is no product of all pixels with a matrix."""
    if conv.groups > 1 or conv.transposed or math.prod(conv.weights.shape[2:]) != 1:
        raise UnsupportedError("the windows have more than a pixel, or the convolution is grouped")
    if max(conv.strides) > 1 or any((*conv.pad_begin, *conv.pad_end)):
        raise UnsupportedError("the pixels are at distances, or there is padding")
    if chain.viewed or chain.graph.is_constant(chain.root.inputs[0]):
        raise UnsupportedError("the result is reshaped, or the data is a constant")


def read_task(subgraph: Subgraph) -> NativeTask:
    """The subgraph as a task. Raises UnsupportedError when it is none."""
    chain = subgraph.parsed(read_chain)
    return NativeTask(chain, conv_of(subgraph) if chain.root.op.startswith("nn.conv") else None)


def _read_convolution(chain: Chain, conv: Conv, folded: Folded) -> NativeConvolution:
    """The chain of a convolution as one. Raises UnsupportedError when there is more to it."""
    data = chain.root.inputs[0]
    if chain.graph.is_constant(data):
        raise UnsupportedError("the data is a constant")
    if chain.viewed:
        raise UnsupportedError("the result is reshaped")
    rest = list(folded.epilogue)
    residual = _residual(chain, rest[0], conv) if rest else None
    if residual is not None:
        rest.pop(0)
    low, high = -inf, inf
    for each in rest:
        if isinstance(each, Combine):
            raise UnsupportedError(
                f"the kernels have no {each.algorithm.name.lower()} of {each.shape} after the convolution"
            )
        least, most = bounds(each)
        low, high = min(max(low, least), most), min(max(high, least), most)
    return NativeConvolution(replace(conv, bias=folded.bias), folded.scale, data, residual, low, high)


def _residual(chain: Chain, op: EpilogueOp, conv: Conv) -> int | None:
    """The value of the result's shape that the function adds, if that is what it does."""
    if not isinstance(op, Combine) or op.algorithm is not DnnlAlgorithm.ADD or op.shape != conv.dst:
        return None
    value = op.operand
    if not isinstance(value, int) or value not in chain.inputs:
        return None
    return value if chain.type_of(value).shape == conv.dst else None


def _read_product(chain: Chain) -> NativeProduct:
    """The chain as a product. Raises UnsupportedError when it is none that the kernels take."""
    left, right = chain.root.inputs
    matrix = chain.constant(right)
    if matrix is None or matrix.ndim != 2:
        raise UnsupportedError("the right operand is no constant matrix")
    if chain.graph.is_constant(left):
        raise UnsupportedError("both operands are constants")
    shape = chain.type_of(chain.root.outputs[0]).shape
    folded = fold(chain, shape, len(shape) - 1)
    epilogue = read_epilogue(chain, folded.epilogue, shape)
    return NativeProduct(left, math.prod(shape[:-1]), matrix, folded.scale, folded.bias, epilogue)
