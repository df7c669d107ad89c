"""Winograd's convolution, F(2x2, 3x3) and F(4x4, 3x3), and for transposed ones F(2x2, 2x2) and F(4x4, 2x2).

Lavin & Gray 2015; see `winograd.cpp`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from collage.backends.base import UnsupportedError
from collage.backends.chains.conv import Conv
from collage.backends.native_kernels.algorithm import ChainAlgorithm, in_layout
from collage.backends.native_kernels.geometry import shape_struct
from collage.backends.native_kernels.kernel import CKernel
from collage.backends.native_kernels.limits import winograd_limits
from collage.backends.native_kernels.task import NativeTask
from collage.backends.native_kernels.winograd_plan import (
    NAME,
    ONE_PLANE,
    Planes,
    WinogradAxis,
    WinogradPlan,
    check_channels,
    numbers_of,
    transformed_weights,
    way_named,
    ways,
)
from collage.graph.storage import BLOCK, BLOCKED, CHANNELS_LAST
from collage.kernel.options import BuildOptions, Variant
from collage.native.packed import Packed

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
    kernel = CKernel(
        "collage_winograd", _Shape, winograd_limits, ("weights", "bias"), scratch_bytes=_scratch_bytes
    )

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
        return [in_layout(task, layout, str(way)) for layout in layouts for way in ways(plan, build)]

    def pack(self, task: NativeTask, build: BuildOptions) -> Packed:
        """The shape of the kernel, the transformed weights, and the bias."""
        conv = task.convolution.scaled
        plan, way = self.plan(conv), way_named(build.variant.split)
        numbers = {**numbers_of(plan, way, build), **task.numbers_of_convolution()}
        bias = np.zeros(plan.outputs, np.float32) if conv.bias is None else conv.bias
        return Packed(numbers, {"weights": transformed_weights(plan, way.tile), "bias": bias})


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
        check_channels(conv.src[1], conv.dst[1])
        planes = _planes(conv)
        if planes.products == 0:
            raise UnsupportedError("the windows see nothing but padding")
        rows, columns = (
            WinogradAxis(conv.src[i], conv.dst[i], (0,), (conv.dst[i],), (conv.pad_begin[i],))
            for i in (-2, -1)
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
        check_channels(conv.src[1], conv.dst[1])
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
    """The phases of an axis, where output y is made of the inputs i for which y + pad - 2 i is in the window."""
    inputs, outputs, pad = conv.src[2 + axis], conv.dst[2 + axis], conv.pad_begin[axis]
    begin = tuple((phase - pad) % 2 for phase in (0, 1))
    count = tuple((outputs - first + 1) // 2 for first in begin)
    before = tuple(1 - (first + pad - phase) // 2 for phase, first in enumerate(begin))
    return WinogradAxis(inputs, outputs, begin, count, before)
