"""How much arithmetic a convolution or a matrix product needs: by its definition, and by the best algorithm."""

from __future__ import annotations

import math
from dataclasses import dataclass

from collage.graph.dataflow import Graph, Node

CONVOLUTIONS = frozenset(f"nn.conv{n}d{suffix}" for n in (1, 2, 3) for suffix in ("", "_transpose"))
_PRODUCT = "matmul"

_TILE = 4
"""The most outputs of a tile, along an axis, in any kernel of Winograd's algorithm, ours or a library's: F(4, r).

Whoever adds a kernel that saves more raises this number, or it falls below the bound (`measure/roofline.py`).
"""


@dataclass(frozen=True)
class Arithmetic:
    """``flop`` are the multiplications and additions of the definition, without those with padding.

    ``saving`` is how many times fewer an algorithm may need.
    """

    flop: int
    saving: float

    @property
    def least_flop(self) -> float:
        """The fewest multiplications and additions."""
        return self.flop / self.saving


NOTHING = Arithmetic(0, 1.0)


def arithmetic_of(graph: Graph, node: Node) -> Arithmetic:
    """The arithmetic of a convolution or product in float32, and NOTHING for other nodes and in other types."""
    if any(graph.type_of(v).dtype != "float32" for v in (*node.inputs[:2], *node.outputs[:1])):
        return NOTHING
    if node.op == _PRODUCT:
        left = graph.type_of(node.inputs[0]).shape
        return Arithmetic(2 * graph.type_of(node.outputs[0]).size * left[-1], 1.0) if left else NOTHING
    if node.op not in CONVOLUTIONS:
        return NOTHING
    axes = convolution_axes(graph, node)
    if axes is None:
        return NOTHING
    src, dst = graph.type_of(node.inputs[0]).shape, graph.type_of(node.outputs[0]).shape
    weights = graph.type_of(node.inputs[1]).shape
    # The weights of a transposed convolution are (inputs, outputs / groups, ...), of others (outputs, inputs / groups).
    channels = (src if node.op.endswith("_transpose") else dst)[1] * weights[1]
    products = dst[0] * channels * math.prod(each.pairs for each in axes)
    # Winograd's algorithm is not used for groups, by us or by any library.
    saving = math.prod(each.saving for each in axes)
    return Arithmetic(2 * products, saving if node.attrs.get("groups") in (1, (1,)) else 1.0)


@dataclass(frozen=True)
class Axis:
    """A spatial axis: windows of ``taps`` elements over ``inputs``, at ``outputs`` places that are ``stride`` apart.

    For a transposed convolution inputs and outputs have changed places.
    """

    inputs: int
    outputs: int
    taps: int
    stride: int
    dilation: int
    pad: int
    transposed: bool

    @property
    def pairs(self) -> int:
        """Pairs of a tap and a place at which the tap sees an input, not padding."""
        return sum(self._seeing(tap * self.dilation - self.pad) for tap in range(self.taps))

    @property
    def takes_all(self) -> bool:
        """Whether each tap sees an input somewhere, so that all weights are read."""
        return all(self._seeing(tap * self.dilation - self.pad) for tap in range(self.taps))

    @property
    def saving(self) -> float:
        """What Winograd's algorithm saves, which no kernel has for windows at distances.

        A transposed convolution at distances is several others at none, with fewer taps each.
        """
        if self.stride > 1 and not self.transposed:
            return 1.0
        taps, results = -(-self.taps // self.stride), self.inputs if self.transposed else self.outputs
        tile = min(_TILE, max(1, results))
        return tile * taps / (tile + taps - 1)

    @property
    def sees_all(self) -> bool:
        """Whether some tap sees each of the inputs: windows leave no gaps, and reach the end."""
        last = (self.outputs - 1) * self.stride + self.taps - self.pad
        return self.dilation == 1 and self.taps >= self.stride and self.pad >= 0 and last >= self.inputs

    def _seeing(self, offset: int) -> int:
        """The number of places o in [0, outputs) for which o * stride + offset is in [0, inputs)."""
        first = max(0, -(offset // self.stride))
        last = min(self.outputs - 1, (self.inputs - 1 - offset) // self.stride)
        return max(0, last - first + 1)


def convolution_axes(graph: Graph, node: Node) -> tuple[Axis, ...] | None:
    """The spatial axes of a convolution, or None where its layouts are not the usual ones."""
    src, dst = graph.type_of(node.inputs[0]).shape, graph.type_of(node.outputs[0]).shape
    weights, rank = graph.type_of(node.inputs[1]).shape, len(src) - 2
    if node.attrs.get("data_layout") not in ("NCW", "NCHW", "NCDHW"):
        return None
    numbers = [_numbers(node, name, rank) for name in ("strides", "dilation", "padding")]
    if any(each is None for each in numbers):
        return None
    strides, dilation, pads = (each for each in numbers if each is not None)
    transposed = node.op.endswith("_transpose")
    inside, outside = (dst, src) if transposed else (src, dst)
    return tuple(
        Axis(inside[i + 2], outside[i + 2], weights[i + 2], strides[i], dilation[i], pads[i], transposed)
        for i in range(rank)
    )


def _numbers(node: Node, name: str, rank: int) -> tuple[int, ...] | None:
    """An attribute as one number for each spatial axis. Of a padding these are the ones before."""
    value = node.attrs.get(name)
    found = value if isinstance(value, tuple) else (value,)
    whole = tuple(each for each in found if isinstance(each, int))
    if len(whole) != len(found) or not whole or len(whole) > 2 * rank:
        return None
    return whole[:rank] if len(whole) >= rank else whole * rank
