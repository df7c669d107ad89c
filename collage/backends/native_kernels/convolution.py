"""Reading a chain as a convolution with constant weights, a bias, a residual and a clamp."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from collage.backends.base import UnsupportedError
from collage.backends.chains.chain import After, Chain, Combine
from collage.backends.chains.conv import Conv, read_conv, scaled
from collage.backends.chains.ending import bounds
from collage.backends.chains.fold import fold
from collage.backends.chains.functions import Algorithm
from collage.graph.storage import Storage
from collage.kernel.options import Variant

SMALL_FLOP = 40_000_000
"""Below this, one thread may do all of it: some 100 us, which can run beside another branch of the model."""


@dataclass(frozen=True)
class Convolution:
    """clamp(conv(data) + bias + residual, low, high); ``data`` and ``residual`` are values of the graph.

    Factors that follow it are in the weights of ``conv`` and terms in its bias.
    """

    conv: Conv
    data: int
    residual: int | None
    low: float
    high: float


def read_convolution(chain: Chain) -> Convolution:
    """The chain as a convolution. Raises UnsupportedError when there is more to it."""
    conv = read_conv(chain.graph, chain.root)
    data = chain.root.inputs[0]
    if chain.graph.is_constant(data):
        raise UnsupportedError("convolution of a constant")
    if chain.viewed:
        raise UnsupportedError("the result is reshaped")
    folded = fold(chain, conv.dst, 1)
    rest = list(folded.after)
    residual = _residual(chain, rest[0], conv) if rest else None
    if residual is not None:
        rest.pop(0)
    low, high = -inf, inf
    for each in rest:
        if isinstance(each, Combine):
            raise UnsupportedError(f"{each.algorithm.name.lower()} of {each.shape} after the convolution")
        least, most = bounds(each)
        low, high = min(max(low, least), most), min(max(high, least), most)
    return Convolution(scaled(conv, folded.scale, folded.bias), data, residual, low, high)


def in_layout(chain: Chain, layout: Storage, split: str) -> Variant:
    """Everything that has the data's or the result's shape in that layout."""
    return Variant((layout,) * len(chain.subgraph.inputs), (layout,), split)


def _residual(chain: Chain, step: After, conv: Conv) -> int | None:
    """The value of the result's shape that the step adds, if that is what it does."""
    if not isinstance(step, Combine) or step.algorithm is not Algorithm.ADD or step.shape != conv.dst:
        return None
    value = step.operand
    if not isinstance(value, int) or value not in chain.subgraph.inputs:
        return None
    return value if chain.type_of(value).shape == conv.dst else None
