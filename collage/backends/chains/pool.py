"""Poolings, and means over all spatial axes: what an operator's attributes mean."""

from __future__ import annotations

from dataclasses import dataclass

from collage.backends.base import UnsupportedError
from collage.backends.chains.attributes import DATA_LAYOUTS, integers, paddings
from collage.backends.chains.conv import Window, pad_end
from collage.backends.chains.functions import DnnlAlgorithm
from collage.graph.dataflow import Graph, Node

POOLS = {f"nn.{kind}_pool{n}d" for kind in ("max", "avg", "adaptive_avg") for n in (1, 2, 3)} | {"mean"}
"""A maximum over all spatial axes (``max``) is no pooling. Of negative infinities it is one of them, and a pooling, in
libraries as in ONNX Runtime, begins at the least finite number."""


@dataclass(frozen=True)
class Pool:
    """Windows over (N, C, spatial...)."""

    algorithm: DnnlAlgorithm
    src: tuple[int, ...]
    dst: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    pad_begin: tuple[int, ...]
    pad_end: tuple[int, ...]

    @property
    def to_points(self) -> bool:
        """Whether one element of each channel is left."""
        return all(extent == 1 for extent in self.dst[2:])

    def window(self, axis: int) -> Window:
        """The windows along a spatial axis, counted from 2."""
        at = axis - 2
        reach = (self.kernel[at] - 1) * self.dilation[at] + 1
        return Window(self.src[axis], reach, self.strides[at], self.pad_begin[at])


def pool_problem(graph: Graph, node: Node) -> str:
    """Why a pooling cannot be taken, or ""."""
    try:
        read_pool(graph, node)
    except UnsupportedError as error:
        return str(error)
    return ""


def read_pool(graph: Graph, node: Node) -> Pool:
    """The pooling of a node. Raises UnsupportedError with the reason when it is none that can be taken."""
    src, dst = graph.type_of(node.inputs[0]).shape, graph.type_of(node.outputs[0]).shape
    rank = len(src) - 2
    if not 1 <= rank <= 3:
        raise UnsupportedError(f"the pooling has {len(src) - 2} spatial axes")
    if node.op == "mean":
        axes = node.attrs["axis"]
        given = range(len(src)) if axes is None else integers(axes)
        if sorted(axis % len(src) for axis in given) != list(range(2, len(src))):
            raise UnsupportedError("it reduces other axes than the spatial ones")
        return _global(DnnlAlgorithm.AVERAGE_POOL, src)
    layout = node.attrs.get("layout")
    if layout not in DATA_LAYOUTS or node.attrs.get("out_layout") not in ("", layout):
        raise UnsupportedError(f"layout {layout}")
    if node.op.startswith("nn.adaptive"):
        if any(extent != 1 for extent in dst[2:]):
            raise UnsupportedError("the adaptive pooling gives more than one element")
        return _global(DnnlAlgorithm.AVERAGE_POOL, src)
    kernel, strides = integers(node.attrs["pool_size"]), integers(node.attrs["strides"])
    dilation = integers(node.attrs["dilation"])
    begin, end = paddings(node, rank)
    algorithm = DnnlAlgorithm.MAX_POOL
    if "avg" in node.op:
        with_padding = node.attrs.get("count_include_pad")
        algorithm = DnnlAlgorithm.AVERAGE_POOL_WITH_PADDING if with_padding else DnnlAlgorithm.AVERAGE_POOL
    pool = Pool(algorithm, src, dst, kernel, strides, dilation, begin, end)
    ends = tuple(pad_end(pool.window(axis), dst[axis]) for axis in range(2, len(src)))
    over = any(mine > asked for mine, asked in zip(ends, end, strict=True))
    if algorithm is DnnlAlgorithm.AVERAGE_POOL_WITH_PADDING and over:
        raise UnsupportedError("windows reach past the padding that they count")
    return Pool(algorithm, src, dst, kernel, strides, dilation, begin, ends)


def _global(algorithm: DnnlAlgorithm, src: tuple[int, ...]) -> Pool:
    rank = len(src) - 2
    ones, zeros = (1,) * rank, (0,) * rank
    return Pool(algorithm, src, (*src[:2], *ones), src[2:], ones, ones, zeros, zeros)
