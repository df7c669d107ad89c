"""Convolutions of few input channels, such as a network's first; see `shallow_conv.cpp`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from collage.backends.base import UnsupportedError
from collage.backends.chains.chain import Floats
from collage.backends.chains.conv import Conv
from collage.backends.native_kernels.algorithm import ROWS, ChainAlgorithm, shared_or_whole
from collage.backends.native_kernels.geometry import shape_struct, strides, three
from collage.backends.native_kernels.kernel import CKernel, pieces_of_share
from collage.backends.native_kernels.limits import shallow_limits
from collage.backends.native_kernels.task import NativeConvolution, NativeTask
from collage.backends.native_kernels.winograd import POINTS, Transforms, transforms
from collage.graph.storage import BLOCK, BLOCKED, CHANNELS_LAST, PLAIN
from collage.kernel.options import BuildOptions, Variant
from collage.native.packed import Packed

WINOGRAD = "winograd over planes"

_MOST_INPUTS = 8
_PLANES = 4
_PANEL = 2 * BLOCK
_CHUNK_BYTES = 600_000
"""Transformed rows and products at a time: the best on a core with 1 MB of L2."""


_TO = ("to_batch", "to_block", "to_plane", "to_row", "to_pixel")
_Shape = shape_struct(
    *("batch", "channels", "out_blocks", ("in", 3), ("out", 3)),
    *("rows", "columns", ("stride", 3), ("pad", 3)),
    *("planes", "seen", "points", "row_chunk", *_TO, "shares"),
)
"""``collage_shallow_conv_shape``."""


def _scratch_bytes(numbers: Mapping[str, Any]) -> int:
    """The size of a share's transformed rows and products (``collage_shallow_conv_scratch``)."""
    width, points, chunk = int(numbers["out"][2]), int(numbers["points"]), int(numbers["row_chunk"])
    row_lines = -(-((width - 1) * numbers["stride"][2] + numbers["columns"]) // BLOCK)
    rows = (chunk - 1) * numbers["stride"][1] + numbers["rows"]
    point_lines = numbers["channels"] * rows * row_lines | 1
    product_lines = numbers["out_blocks"] * chunk * width | 1
    return 4 * BLOCK * int(points * point_lines + (points if numbers["planes"] > 1 else 1) * product_lines)


class ShallowConv(ChainAlgorithm):
    """Takes up to 8 input channels in the plain layout, as a network's first convolution has them."""

    name = "shallow_conv"
    roots = frozenset({"nn.conv1d", "nn.conv2d", "nn.conv3d"})
    kernel = CKernel(
        *("collage_shallow_conv", _Shape, shallow_limits, ("weights", "before", "after", "bias")),
        scratch_bytes=_scratch_bytes,
    )

    def reassociates(self, variant: Variant) -> bool:
        """Whether it uses Winograd's algorithm, which sums planes."""
        return variant.split.endswith(WINOGRAD)

    def variants(self, task: NativeTask, build: BuildOptions) -> Sequence[Variant]:
        """Both layouts with channels innermost for the result, direct or with Winograd's algorithm over planes."""
        splits = _splits(task, build)
        if _transforms(_checked(task).conv) is not None:
            splits = [f"{split}, {WINOGRAD}" if split else WINOGRAD for split in splits]
        return _variants(task, splits)

    def direct_variants(self, task: NativeTask, build: BuildOptions) -> Sequence[Variant]:
        """The same without Winograd's algorithm."""
        return _variants(task, _splits(task, build))

    def pack(self, task: NativeTask, build: BuildOptions) -> Packed:
        """The shape of the kernel, the weights in the order in which they are read, transforms and bias."""
        conv, variant = _checked(task).scaled, build.variant
        batch, channels, *_ = conv.dst
        inside, outside = three(conv.src[2:]), three(conv.dst[2:])
        depth, rows, columns = three(conv.weights.shape[2:])
        stride = three(conv.strides)
        found = _transforms(conv) if self.reassociates(variant) else None
        planes = 1 if found is None else _PLANES
        if found is None:
            found = Transforms(np.eye(depth), np.eye(depth), np.ones((1, depth)))
        points, seen = found.before.shape
        row_bytes = 4 * (
            points * conv.src[1] * stride[1] * outside[2] * stride[2]
            + (points if planes > 1 else 1) * channels * outside[2]
        )
        shares = build.threads if ROWS in variant.split else 1
        row_chunk = max(1, min(outside[1], _CHUNK_BYTES // row_bytes))
        chunks = batch * -(-outside[0] // planes) * outside[1] // row_chunk
        pieces = pieces_of_share(conv.flop / shares, chunks // shares) if shares > 1 else 1
        numbers = {
            "batch": batch,
            "channels": conv.src[1],
            "out_blocks": channels // BLOCK,
            "in": inside,
            "out": outside,
            "rows": rows,
            "columns": columns,
            "stride": stride,
            "pad": three(conv.pad_begin, missing=0),
            "planes": planes,
            "seen": seen,
            "points": points,
            "row_chunk": row_chunk,
            **dict(zip(_TO, strides(channels, outside, variant.outputs[0]), strict=True)),
            "shares": shares * pieces,
            "pieces": pieces,
            **task.numbers_of_convolution(),
        }
        after = np.zeros((_PLANES, points))
        after[: len(found.after)] = found.after
        arrays = {
            "weights": packed_weights(conv.weights, found),
            "before": found.before,
            "after": after,
            "bias": np.zeros(channels, np.float32) if conv.bias is None else conv.bias,
        }
        return Packed(numbers, {name: np.asarray(array, np.float32) for name, array in arrays.items()})


def packed_weights(weights: Floats, found: Transforms) -> Floats:
    """Weights (O, I, planes, rows, columns) as [point][panel of 32 outputs][input][row][column][output], flat."""
    outputs, inputs = weights.shape[:2]
    window = weights.reshape(outputs, inputs, *three(weights.shape[2:])).astype(np.float64)
    points = np.einsum("pd,oidrc->pirco", found.weights, window)
    panels = [points[..., begin : begin + _PANEL].reshape(len(points), -1) for begin in range(0, outputs, _PANEL)]
    return np.concatenate(panels, 1).astype(np.float32)


def _checked(task: NativeTask) -> NativeConvolution:
    """The task as a convolution. Raises UnsupportedError when it is none that the kernel takes."""
    conv = task.convolution.conv
    if conv.groups > 1 or conv.transposed:
        raise UnsupportedError("the convolution is grouped or transposed")
    if conv.src[1] > _MOST_INPUTS:
        raise UnsupportedError(f"{conv.src[1]} input channels are not few")
    if conv.dst[1] % BLOCK:
        raise UnsupportedError(f"{conv.dst[1]} output channels are no multiple of {BLOCK}")
    if any(each != 1 for each in conv.dilation):
        raise UnsupportedError("the window is dilated")
    if conv.strides[-1] > 2:
        raise UnsupportedError(f"there is a window at every {conv.strides[-1]} columns only")
    if len(conv.src) == 5 and conv.weights.shape[2] > 16:
        raise UnsupportedError(f"the window has {conv.weights.shape[2]} planes")
    return task.convolution


def _transforms(conv: Conv) -> Transforms | None:
    """Winograd's transforms over planes, if they are worth it."""
    if len(conv.src) != 5 or conv.strides[0] != 1 or conv.dst[2] < _PLANES:
        return None
    taps = conv.weights.shape[2]
    points = POINTS.get(_PLANES + taps - 2)
    return None if points is None or taps < 3 else transforms(points, _PLANES, taps)


def _splits(task: NativeTask, build: BuildOptions) -> list[str]:
    return shared_or_whole(ROWS, _checked(task).conv.flop, build)


def _variants(task: NativeTask, splits: Sequence[str]) -> list[Variant]:
    data, found = _checked(task).data, []
    for target in (BLOCKED, CHANNELS_LAST):
        inputs = tuple(PLAIN if each == data else target for each in task.chain.inputs)
        found += [Variant(inputs, (target,), split) for split in splits]
    return found
