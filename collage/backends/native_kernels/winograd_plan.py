"""What a Winograd kernel is to do, in which ways it may, and which of them may be the fastest."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from collage.backends.base import UnsupportedError
from collage.backends.chains.chain import Floats
from collage.backends.native_kernels.algorithm import CHANNELS, WHOLE, is_small
from collage.backends.native_kernels.geometry import strides
from collage.backends.native_kernels.points import POINTS, transforms
from collage.graph.storage import BLOCK
from collage.kernel.machine_speeds import Blocking
from collage.kernel.options import BuildOptions

NAME = "winograd"
TILES = "tiles"

_PANEL = 2 * BLOCK
_ROWS = 14
"""The number of rows of the register tile. Chunks of tiles are multiples of it."""

_CHUNK_DEPTHS = 4

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
            0 <= plane + tap - self.pad < self.inputs
            for plane in range(self.outputs)
            for tap in range(self.taps)
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


def check_channels(inputs: int, outputs: int) -> None:
    """Raises UnsupportedError when the channels do not fill blocks."""
    if inputs % BLOCK or outputs % BLOCK:
        raise UnsupportedError(f"{inputs} to {outputs} channels are no multiples of {BLOCK}")


def ways(plan: WinogradPlan, build: BuildOptions) -> Iterator[Way]:
    """The ways that might be the fastest, by a rough count of arithmetic and memory traffic."""
    groups = [[TILES, CHANNELS]] if build.threads > 1 else []
    if is_small(plan.flop / 4, build):
        groups.append([WHOLE])
    for splits in groups:
        costs = {
            way: _milliseconds(plan, way, build) for tile in (4, 2) for way in (Way(tile, s) for s in splits)
        }
        yield from (way for way, cost in costs.items() if cost <= _SLOWER * min(costs.values()))


def way_named(name: str) -> Way:
    """The way of a variant. Raises UnsupportedError when there is none of that name."""
    for tile in (4, 2):
        for split in (TILES, CHANNELS, WHOLE):
            if str(Way(tile, split)) == name:
                return Way(tile, split)
    raise UnsupportedError(f"{name!r} is no way of Winograd's")


def numbers_of(plan: WinogradPlan, way: Way, build: BuildOptions) -> dict[str, Any]:
    """The kernel's parameters by name, with the layout of the variant's result."""
    (layout,) = build.variant.outputs
    chunk_tiles, chunk_depths = _chunk(plan, way.tile, build.speeds.blocking)
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


def transformed_weights(plan: WinogradPlan, tile: int) -> Floats:
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


def _chunk(plan: WinogradPlan, tile: int, blocking: Blocking) -> tuple[int, int]:
    """Tiles and planes of the result that are transformed and multiplied at a time."""
    depths = min(plan.planes.outputs, _CHUNK_DEPTHS)
    seen = min(plan.planes.inputs, depths + plan.planes.taps - 1)
    fit = blocking.winograd_bytes // (
        4 * plan.points(tile) ** 2 * (plan.inputs * seen + plan.outputs * depths)
    )
    return min(plan.tiles(tile), max(1, fit // _ROWS) * _ROWS), depths


def _milliseconds(plan: WinogradPlan, way: Way, build: BuildOptions) -> float:
    """A rough estimate: the time of the products, or of reading their weights from memory, and of the transforms.

    With few rows a product waits for its weights, which are read from the last cache.
    """
    speeds, threads = build.speeds, build.threads
    channels, planes = plan.inputs * plan.outputs, plan.planes
    points, tiles = plan.phases * plan.points(way.tile) ** 2, plan.tiles(way.tile)
    shares = 1 if way.split == WHOLE else threads
    rows = min(plan.batch * tiles / (shares if way.split == TILES else 1), tiles, _ROWS)
    enough = 2 * speeds.gemm_gflops / speeds.last_cache.read_gbs
    speed = 1e6 * speeds.gemm_gflops * shares * min(1.0, rows / enough)
    multiply = 2 * points * plan.batch * tiles * planes.products * channels / speed
    stream = 4 * points * planes.taps * channels / (1e6 * speeds.memory_gbs(threads))
    values = planes.inputs * plan.inputs / (1 if way.split == CHANNELS else shares)
    values += planes.outputs * plan.outputs / shares
    transform = plan.batch * tiles * points * values / BLOCK * speeds.winograd_ns / 1e6
    return max(multiply, stream) + transform
