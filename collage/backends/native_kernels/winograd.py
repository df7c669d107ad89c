"""Winograd's convolution, F(2x2, 3x3) and F(4x4, 3x3), and for transposed ones F(2x2, 2x2) and F(4x4, 2x2).

Lavin & Gray 2015; see `winograd.cpp`. A plan is what the kernel computes, and a way is one of the ways to do it.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from collage.backends.base import UnsupportedError
from collage.backends.chains.chain import Floats
from collage.backends.chains.conv import Conv
from collage.backends.native_kernels.algorithm import CHANNELS, WHOLE, ChainAlgorithm, in_layout, is_small
from collage.backends.native_kernels.geometry import shape_struct, strides
from collage.backends.native_kernels.kernel import CKernel
from collage.backends.native_kernels.limits import winograd_limits
from collage.backends.native_kernels.task import NativeTask
from collage.graph.storage import BLOCK, BLOCKED, CHANNELS_LAST
from collage.kernel.options import BuildOptions, Variant
from collage.native.packed import Packed


@dataclass(frozen=True)
class Transforms:
    """outputs = after · ((weights · w) * (before · inputs)), where * is element by element. All are in float64."""

    before: npt.NDArray[np.float64]
    weights: npt.NDArray[np.float64]
    after: npt.NDArray[np.float64]


def transforms(points: Sequence[float], outputs: int, taps: int) -> Transforms:
    """The transforms of F(outputs, taps) at these points and infinity, ``outputs + taps - 1`` points in all."""
    assert len(points) == outputs + taps - 2
    at = np.array(points, np.float64)
    others = [np.delete(at, i) for i in range(len(at))]
    weights = [point ** np.arange(taps) / np.prod(point - rest) for point, rest in zip(at, others, strict=True)]
    before = [[*np.poly(rest)[::-1], 0.0] for rest in others]
    last = np.arange(outputs) == outputs - 1
    return Transforms(
        np.array([*before, np.poly(at)[::-1]]),
        np.array([*weights, np.arange(taps) == taps - 1], np.float64),
        np.column_stack([at ** np.arange(outputs)[:, None], last]),
    )


def around_zero(*distances: float) -> tuple[float, ...]:
    """The points 0, and plus and minus each distance."""
    return (0.0, *(sign * each for each in distances for sign in (1, -1)))


POINTS = {
    2: (1.0, -1.0),
    4: around_zero(0.5**0.5, 2**0.5)[1:],
    3: around_zero(1.0),
    5: around_zero(0.5**0.5, 2**0.5),
    7: around_zero(0.6, 1.0, 1.6),
    9: around_zero(0.4, 0.8, 1.2, 1.8),
}
"""Points by their number.

Their errors in float32, relative to the largest result: 5 points have 2.5e-6 in two dimensions, where 0, +-1 and +-2
have 1.1e-5. In one dimension 7 points have 1.6e-6 and 9 points 4.2e-6, where 0, +-1/4, +-1/2, +-1 and +-2 have 2.4e-5.
"""


NAME = "winograd"
TILES = "tiles"

_PANEL = 2 * BLOCK
_ROWS = 14
"""The number of rows of the register tile. Chunks of tiles are multiples of it."""

_CHUNK_DEPTHS = 4
_CHUNK_BYTES = 1_200_000
"""Transformed values at a time: the best on a core with 1 MB of L2, where half as much takes about as long."""

_GEMM_GFLOPS, _CACHE_GBS, _MEMORY_GBS, _POINT_NS = 110.0, 88.0, 35.0, 2.4
"""What a core of Zen 4 computes and reads, and its time for one point of a tile of 16 channels in the transforms."""

_SLOWER = 1.5
"""Ways that are estimated to be so many times slower than the best one are not offered."""


@dataclass(frozen=True)
class Way:
    """The number of outputs of a tile in each direction, and how the work is shared."""

    tile: int
    split: str

    def __str__(self) -> str:
        return f"{NAME} {self.tile}x{self.tile}" + (f", {self.split}" if self.split else "")


@dataclass(frozen=True)
class Planes:
    """The third dimension, without the taps of the window that never see anything but padding."""

    inputs: int
    outputs: int
    first: int
    taps: int
    pad: int

    @property
    def products(self) -> int:
        """The number of taps that see a plane, summed over the planes of the result."""
        return sum(
            0 <= plane + tap - self.pad < self.inputs for plane in range(self.outputs) for tap in range(self.taps)
        )


ONE_PLANE = Planes(1, 1, 0, 1, 0)


@dataclass(frozen=True)
class WinogradAxis:
    """Rows or columns, as `winograd.h` has them: a convolution for each phase of the output."""

    inputs: int
    outputs: int
    begin: tuple[int, ...]
    count: tuple[int, ...]
    pad: tuple[int, ...]

    def numbers(self) -> list[int]:
        """The numbers of ``collage_winograd_axis``, in its order."""
        pairs = ((*each, 0)[:2] for each in (self.begin, self.count, self.pad))
        return [self.inputs, self.outputs, len(self.begin), *(number for pair in pairs for number in pair)]

    def tiles(self, tile: int) -> int:
        """The most tiles of a phase."""
        return max(-(-count // tile) for count in self.count)


@dataclass(frozen=True)
class WinogradPlan:
    """``weights`` are (phases of rows, phases of columns, O, I, taps, r, r) with windows of r x r."""

    batch: int
    planes: Planes
    rows: WinogradAxis
    columns: WinogradAxis
    weights: Floats

    @property
    def window(self) -> int:
        """The size r of the windows of r x r elements."""
        return int(self.weights.shape[-1])

    @property
    def inputs(self) -> int:
        """The number of input channels."""
        return int(self.weights.shape[3])

    @property
    def outputs(self) -> int:
        """The number of output channels."""
        return int(self.weights.shape[2])

    @property
    def phases(self) -> int:
        """The number of convolutions."""
        return math.prod(self.weights.shape[:2])

    def points(self, tile: int) -> int:
        """The number of points in each direction."""
        return tile + self.window - 1

    def tiles(self, tile: int) -> int:
        """The most tiles of one plane of one image and phase."""
        return self.rows.tiles(tile) * self.columns.tiles(tile)

    @property
    def flop(self) -> int:
        """Floating-point operations of the direct algorithm."""
        places = self.batch * self.planes.outputs * self.tiles(1) * self.phases
        return 2 * places * self.inputs * self.outputs * self.planes.taps * self.window**2


_Shape = shape_struct(
    *("batch", "in_blocks", "out_blocks", "in_depth", "out_depth", "depth_taps", "pad_depth"),
    *(("rows", 9), ("columns", 9), ("from", 5), ("to", 5)),
    *("points", "chunk_tiles", "chunk_depths", "by_channels", "shares"),
)
"""``collage_winograd_shape``."""


def _scratch_bytes(numbers: Mapping[str, Any]) -> int:
    """The size of a share's transformed input and products (``collage_winograd_scratch``)."""
    planes = min(numbers["chunk_depths"] + numbers["depth_taps"] - 1, numbers["in_depth"])
    inside = numbers["in_blocks"] * numbers["chunk_tiles"] | 1
    outside = numbers["out_blocks"] * numbers["chunk_tiles"] * numbers["chunk_depths"] | 1
    return 4 * BLOCK * int(numbers["points"]) ** 2 * int(planes * inside + outside)


class _AnyWinograd(ChainAlgorithm):
    kernel = CKernel("collage_winograd", _Shape, winograd_limits, ("weights", "bias"), scratch_bytes=_scratch_bytes)

    @abstractmethod
    def plan(self, conv: Conv) -> WinogradPlan:
        """What the kernel is to do. Raises UnsupportedError when it does not take the convolution."""

    def reassociates(self, variant: Variant) -> bool:
        """Always, for it sums the pixels of a tile."""
        return variant.split.startswith(NAME)

    def variants(self, task: NativeTask, build: BuildOptions) -> Sequence[Variant]:
        """Both layouts with channels innermost, and the tiles and splits that might be the fastest."""
        plan = self.plan(task.convolution.conv)
        layouts = BLOCKED, CHANNELS_LAST
        return [in_layout(task, layout, str(way)) for layout in layouts for way in _ways(plan, build)]

    def pack(self, task: NativeTask, build: BuildOptions) -> Packed:
        """The shape of the kernel, the transformed weights, and the bias."""
        conv = task.convolution.scaled
        plan, way = self.plan(conv), _way_named(build.variant.split)
        numbers = {**_numbers_of(plan, way, build), **task.numbers_of_convolution()}
        bias = np.zeros(plan.outputs, np.float32) if conv.bias is None else conv.bias
        return Packed(numbers, {"weights": _transformed_weights(plan, way.tile), "bias": bias})


class Winograd(_AnyWinograd):
    """Takes 3x3 windows, also of several planes, at distances of 1, with channels in multiples of 16."""

    name = "winograd"
    roots = frozenset({"nn.conv2d", "nn.conv3d"})

    def plan(self, conv: Conv) -> WinogradPlan:
        """A plan with one convolution of whole planes."""
        if conv.groups > 1 or conv.transposed:
            raise UnsupportedError("the convolution is grouped or transposed")
        if conv.weights.shape[-2:] != (3, 3):
            raise UnsupportedError(f"there is a window of {conv.weights.shape[-2]}x{conv.weights.shape[-1]}")
        if {*conv.strides, *conv.dilation} != {1}:
            raise UnsupportedError("the windows or their elements are at distances other than 1")
        _check_channels(conv.src[1], conv.dst[1])
        planes = _planes(conv)
        if planes.products == 0:
            raise UnsupportedError("the windows see nothing but padding")
        rows, columns = (
            WinogradAxis(conv.src[i], conv.dst[i], (0,), (conv.dst[i],), (conv.pad_begin[i],)) for i in (-2, -1)
        )
        weights = conv.weights.reshape(1, 1, *conv.weights.shape[:2], -1, 3, 3)
        weights = weights[:, :, :, :, planes.first : planes.first + planes.taps]
        return WinogradPlan(conv.dst[0], planes, rows, columns, weights)


class TransposedWinograd(_AnyWinograd):
    """Takes transposed 4x4 windows at distances of 2, as four convolutions with windows of 2x2, one for each phase."""

    name = "transposed_winograd"
    roots = frozenset({"nn.conv2d_transpose"})

    def plan(self, conv: Conv) -> WinogradPlan:
        """A plan with four convolutions, one each for even and odd rows and columns."""
        if conv.groups > 1 or conv.weights.shape[-2:] != (4, 4) or conv.strides != (2, 2):
            raise UnsupportedError(
                f"the window is {conv.weights.shape[2:]} at distances of {conv.strides}, or it is grouped"
            )
        if conv.dilation != (1, 1):
            raise UnsupportedError("the window is dilated")
        _check_channels(conv.src[1], conv.dst[1])
        rows, columns = (_phases(conv, axis) for axis in (0, 1))
        # The window of phase i sees first what element i + 2 multiplies, and then element i.
        weights = conv.weights[:, :, None, [[2, 0], [3, 1]]][..., [[2, 0], [3, 1]]]
        return WinogradPlan(conv.dst[0], ONE_PLANE, rows, columns, weights.transpose(3, 5, 0, 1, 2, 4, 6))


def _planes(conv: Conv) -> Planes:
    if len(conv.src) == 4:
        return ONE_PLANE
    inputs, outputs, pad = conv.src[2], conv.dst[2], conv.pad_begin[0]
    first = max(0, pad - (outputs - 1))
    return Planes(inputs, outputs, first, min(conv.weights.shape[2], inputs + pad) - first, pad - first)


def _phases(conv: Conv, axis: int) -> WinogradAxis:
    """The phases of an axis whose output y is made of the inputs i for which y + pad - 2 i is in the window."""
    inputs, outputs, pad = conv.src[2 + axis], conv.dst[2 + axis], conv.pad_begin[axis]
    begin = tuple((phase - pad) % 2 for phase in (0, 1))
    count = tuple((outputs - first + 1) // 2 for first in begin)
    before = tuple(1 - (first + pad - phase) // 2 for phase, first in enumerate(begin))
    return WinogradAxis(inputs, outputs, begin, count, before)


def _check_channels(inputs: int, outputs: int) -> None:
    """Raises UnsupportedError when the channels do not fill blocks."""
    if inputs % BLOCK or outputs % BLOCK:
        raise UnsupportedError(f"{inputs} to {outputs} channels are no multiples of {BLOCK}")


def _ways(plan: WinogradPlan, build: BuildOptions) -> Iterator[Way]:
    """The ways that might be the fastest, by a rough count of arithmetic and memory traffic."""
    groups = [[TILES, CHANNELS]] if build.threads > 1 else []
    if is_small(plan.flop / 4, build):
        groups.append([WHOLE])
    for splits in groups:
        costs = {
            way: _milliseconds(plan, way, build.threads) for tile in (4, 2) for way in (Way(tile, s) for s in splits)
        }
        yield from (way for way, cost in costs.items() if cost <= _SLOWER * min(costs.values()))


def _way_named(name: str) -> Way:
    """The way of a variant. Raises UnsupportedError when there is none of that name."""
    for tile in (4, 2):
        for split in (TILES, CHANNELS, WHOLE):
            if str(Way(tile, split)) == name:
                return Way(tile, split)
    raise UnsupportedError(f"{name!r} is no way of Winograd's")


def _numbers_of(plan: WinogradPlan, way: Way, build: BuildOptions) -> dict[str, Any]:
    """The kernel's parameters by name, with the layout of the variant's result."""
    (layout,) = build.variant.outputs
    chunk_tiles, chunk_depths = _chunk(plan, way.tile)
    return {
        "batch": plan.batch,
        "in_blocks": plan.inputs // BLOCK,
        "out_blocks": plan.outputs // BLOCK,
        "in_depth": plan.planes.inputs,
        "out_depth": plan.planes.outputs,
        "depth_taps": plan.planes.taps,
        "pad_depth": plan.planes.pad,
        "rows": plan.rows.numbers(),
        "columns": plan.columns.numbers(),
        "from": strides(plan.inputs, (plan.planes.inputs, plan.rows.inputs, plan.columns.inputs), layout),
        "to": strides(plan.outputs, (plan.planes.outputs, plan.rows.outputs, plan.columns.outputs), layout),
        "points": plan.points(way.tile),
        "chunk_tiles": chunk_tiles,
        "chunk_depths": chunk_depths,
        "by_channels": way.split == CHANNELS,
        "shares": 1 if way.split == WHOLE else build.threads,
    }


def _transformed_weights(plan: WinogradPlan, tile: int) -> Floats:
    """Weights as [phase][point][panel of 32 outputs][tap][input][output], computed in float64."""
    one = transforms(POINTS[plan.points(tile) - 1], tile, plan.window).weights
    both = np.kron(one, one)
    outputs, inputs, taps = plan.weights.shape[2:5]
    found = np.empty((plan.phases, len(both), outputs * inputs * taps), np.float32)
    for phase, weights in enumerate(plan.weights.reshape(-1, *plan.weights.shape[2:])):
        for begin in range(0, outputs, _PANEL):
            panel = weights[begin : begin + _PANEL]
            points = panel.reshape(len(panel), inputs, taps, -1).astype(np.float64) @ both.T
            place = slice(begin * inputs * taps, (begin + len(panel)) * inputs * taps)
            found[phase, :, place] = points.transpose(3, 2, 1, 0).reshape(len(both), -1)
    return found


def _chunk(plan: WinogradPlan, tile: int) -> tuple[int, int]:
    """Tiles and planes of the result that are transformed and multiplied at a time."""
    depths = min(plan.planes.outputs, _CHUNK_DEPTHS)
    seen = min(plan.planes.inputs, depths + plan.planes.taps - 1)
    fit = _CHUNK_BYTES // (4 * plan.points(tile) ** 2 * (plan.inputs * seen + plan.outputs * depths))
    return min(plan.tiles(tile), max(1, fit // _ROWS) * _ROWS), depths


def _milliseconds(plan: WinogradPlan, way: Way, threads: int) -> float:
    """A rough estimate: the time of the products, or of reading their weights from memory, and of the transforms.

    With few rows a product waits for its weights, which are read from the last cache.
    """
    channels, planes = plan.inputs * plan.outputs, plan.planes
    points, tiles = plan.phases * plan.points(way.tile) ** 2, plan.tiles(way.tile)
    shares = 1 if way.split == WHOLE else threads
    rows = min(plan.batch * tiles / (shares if way.split == TILES else 1), tiles, _ROWS)
    enough = 2 * _GEMM_GFLOPS / _CACHE_GBS
    speed = 1e6 * _GEMM_GFLOPS * shares * min(1.0, rows / enough)
    multiply = 2 * points * plan.batch * tiles * planes.products * channels / speed
    stream = 4 * points * planes.taps * channels / (1e6 * _MEMORY_GBS)
    values = planes.inputs * plan.inputs / (1 if way.split == CHANNELS else shares)
    values += planes.outputs * plan.outputs / shares
    transform = plan.batch * tiles * points * values / BLOCK * _POINT_NS / 1e6
    return max(multiply, stream) + transform
