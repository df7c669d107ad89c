"""Convolutions, also transposed ones: what an operator's attributes mean, and its weights as oneDNN has them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from collage.backends.base import UnsupportedError
from collage.backends.chains.attributes import DATA_LAYOUTS, integers, paddings
from collage.backends.chains.chain import Floats
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import Graph, Node
from collage.graph.storage import BLOCK


@dataclass(frozen=True)
class Window:
    """One spatial axis of a convolution or pooling, with ``size`` input elements and windows of ``reach`` elements."""

    size: int
    reach: int
    stride: int
    pad_begin: int


@dataclass(frozen=True)
class Halo:
    """Input elements ``start`` to ``stop``, and the padding before and after them. There may be no elements."""

    start: int
    stop: int
    pad_begin: int
    pad_end: int


def row_axis(src: Sequence[int], dst: Sequence[int]) -> int | None:
    """The spatial axis (from 2) along which parts of both tensors lie together when channels lie innermost.

    None when the result has a single element there, or the input has more than one further out.
    """
    for axis in range(2, len(dst)):
        if dst[axis] > 1:
            return axis
        if src[axis] > 1:
            return None
    return None


def pad_end(window: Window, outputs: int) -> int:
    """The padding after the end with which there are exactly that many outputs. It may be negative."""
    return (outputs - 1) * window.stride + window.reach - window.pad_begin - window.size


def needed(window: Window, start: int, stop: int) -> Halo:
    """The elements that outputs ``start`` to ``stop`` read."""
    first = start * window.stride - window.pad_begin
    last = (stop - 1) * window.stride - window.pad_begin + window.reach
    low, high = max(0, first), min(window.size, last)
    return Halo(low, high, low - first, last - high)


def transposed_pad_end(window: Window, outputs: int) -> int:
    """Like ``pad_end`` for a transposed convolution: the elements that are cut off the end of its result."""
    return (window.size - 1) * window.stride + window.reach - window.pad_begin - outputs


def transposed_needed(window: Window, start: int, stop: int) -> Halo:
    """The elements that outputs ``start`` to ``stop`` of a transposed convolution read."""
    stride, pad, reach = window.stride, window.pad_begin, window.reach
    low = max(0, -((reach - 1 - pad - start) // stride))
    high = min(window.size, (stop - 1 + pad) // stride + 1)
    begin = start - (low * stride - pad)
    if begin < 0:  # the output is between two inputs' windows, and the one before it counts as padding
        low, begin = low - 1, begin + stride
    return Halo(low, high, begin, (high - 1) * stride - pad + reach - stop)


_WEIGHTS = ("OIW", "OIHW", "OIDHW")
_TRANSPOSED_WEIGHTS = ("IOW", "IOHW", "IODHW")

_MAX_MERGED = 16


@dataclass(frozen=True)
class Conv:
    """A convolution of a chain.

    ``weights`` are (O, I / groups, spatial...), as oneDNN has them also for transposed ones.

    ``dst`` is (N, O, spatial...), ``pad_end`` is what makes the output as large as that.
    """

    src: tuple[int, ...]
    dst: tuple[int, ...]
    weights: Floats
    bias: Floats | None
    groups: int
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    pad_begin: tuple[int, ...]
    pad_end: tuple[int, ...]
    transposed: bool

    @property
    def flop(self) -> int:
        """The number of floating-point operations."""
        outer = self.src if self.transposed else self.dst
        per_channel = self.weights.shape[0] // self.groups if self.transposed else self.weights.shape[1]
        flop: int = 2 * math.prod(outer) * per_channel * math.prod(self.weights.shape[2:])
        return flop

    def window(self, axis: int) -> Window:
        """The windows along a spatial axis, counted from 2."""
        at = axis - 2
        reach = (self.weights.shape[axis] - 1) * self.dilation[at] + 1
        return Window(self.src[axis], reach, self.strides[at], self.pad_begin[at])


def conv_problem(graph: Graph, node: Node) -> str:
    """Why a convolution cannot be taken, or ""."""
    return layout_problem(node) if graph.is_constant(node.inputs[1]) else "its weights are no constant"


def layout_problem(node: Node) -> str:
    """Why a convolution cannot be taken whatever its weights are, or ""."""
    transposed = node.op.endswith("_transpose")
    wanted = _TRANSPOSED_WEIGHTS if transposed else _WEIGHTS
    data, kernel = node.attrs.get("data_layout"), node.attrs.get("kernel_layout")
    if data not in DATA_LAYOUTS or node.attrs.get("out_layout") not in ("", data) or kernel not in wanted:
        return f"layout {data} with weights {kernel}"
    return ""


def read_conv(graph: Graph, node: Node, weights: Floats | None = None) -> Conv:
    """The convolution of a node, with other ``weights`` than its own if they are given.

    Raises UnsupportedError with the reason when it is none that can be taken.
    """
    given = weights is not None
    if problem := layout_problem(node) if given else conv_problem(graph, node):
        raise UnsupportedError(f"{node.op}: {problem}")
    src, dst = graph.type_of(node.inputs[0]).shape, graph.type_of(node.outputs[0]).shape
    if weights is None:
        weights = np.asarray(graph.constants[node.inputs[1]], np.float32)
    rank = len(src) - 2
    strides, dilation = integers(node.attrs["strides"]), integers(node.attrs["dilation"])
    begin, end = paddings(node, rank)
    (groups,) = integers(node.attrs["groups"])
    transposed = node.op.endswith("_transpose")
    if transposed:
        inputs, outputs = weights.shape[:2]
        grouped = weights.reshape(groups, inputs // groups, outputs, *weights.shape[2:])
        weights = np.ascontiguousarray(grouped.swapaxes(1, 2)).reshape(
            groups * outputs, inputs // groups, *weights.shape[2:]
        )
    conv = Conv(src, dst, weights, None, groups, strides, dilation, begin, end, transposed)
    found = transposed_pad_end if transposed else pad_end
    ends = tuple(found(conv.window(axis), dst[axis]) for axis in range(2, rank + 2))
    return replace(conv, pad_end=ends)


def conv_of(subgraph: Subgraph) -> Conv:
    """The convolution that a subgraph begins with, read once for all subgraphs that begin with it.

    Raises like ``read_conv``.
    """
    return Subgraph(subgraph.model, subgraph.nodes[:1]).parsed(_first_conv)


def _first_conv(subgraph: Subgraph) -> Conv:
    return read_conv(subgraph.model.graph, subgraph.operators[0])


def scaled(conv: Conv, scale: Floats | None, bias: Floats | None) -> Conv:
    """The convolution with the linear part of its epilogue folded into weights and bias."""
    weights = conv.weights
    if scale is not None:
        weights = weights * scale.reshape(-1, *[1] * (weights.ndim - 1))
    return replace(conv, weights=weights, bias=bias)


def in_a_row(conv: Conv) -> Conv:
    """A pointwise convolution with all positions on the first spatial axis, so that shares of them are even.

    With channels last the positions lie one after the other. 2048 to 1024 channels on 7x7 take 425 us in shares of 25
    and 24 positions, and 480 us in shares of 4 and 3 rows (2 cores with AVX-512).
    """
    same = conv.src[2:] == conv.dst[2:] and set(conv.strides) == {1} and not any(conv.pad_begin)
    if conv.transposed or not same or math.prod(conv.weights.shape[2:]) != 1:
        return conv
    space = (math.prod(conv.src[2:]), *[1] * (len(conv.src) - 3))
    return replace(conv, src=(*conv.src[:2], *space), dst=(*conv.dst[:2], *space))


def merged(conv: Conv) -> Conv:
    """The convolution with narrow groups merged to wide ones, where that fills blocks of 16 channels.

    The weights become block-diagonal, which multiplies the arithmetic, but the blocked kernels are faster by more than
    that: 32 groups of 4 channels, 3x3 on 56x56, take 231 us as 8 groups of 16, where the channels-last kernel takes
    343 us (2 cores with AVX-512).
    """
    ins, outs = conv.src[1] // conv.groups, conv.dst[1] // conv.groups
    if conv.groups == 1 or ins == outs == 1:
        return conv
    count = next(
        (
            m
            for m in range(1, min(conv.groups, _MAX_MERGED) + 1)
            if conv.groups % m == 0 and m * ins % BLOCK == 0 and m * outs % BLOCK == 0
        ),
        1,
    )
    if count == 1:
        return conv
    groups = conv.groups // count
    narrow = conv.weights.reshape(groups, count, outs, ins, *conv.weights.shape[2:])
    wide = np.zeros((groups, count, outs, count, ins, *conv.weights.shape[2:]), np.float32)
    for i in range(count):
        wide[:, i, :, i] = narrow[:, i]
    return replace(
        conv, groups=groups, weights=wide.reshape(groups * count * outs, count * ins, *conv.weights.shape[2:])
    )
