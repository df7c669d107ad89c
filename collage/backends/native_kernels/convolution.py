"""Reading a chain as a convolution with constant weights, a bias, a residual and a clamp."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from collage.backends.base import UnsupportedError
from collage.backends.chains.chain import Chain, Combine, EpilogueOp, Floats
from collage.backends.chains.conv import Conv, scaled
from collage.backends.chains.epilogue import bounds
from collage.backends.chains.fold import Folded
from collage.backends.chains.functions import DnnlAlgorithm


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


def read_convolution(chain: Chain, conv: Conv, folded: Folded) -> NativeConvolution:
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
