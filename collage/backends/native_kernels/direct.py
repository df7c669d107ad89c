"""Direct convolution for groups of few channels and for single ones; see `direct_conv.cpp`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from collage.backends.base import UnsupportedError
from collage.backends.chains.conv import Conv
from collage.backends.native_kernels.algorithm import ChainAlgorithm, in_layout, is_small
from collage.backends.native_kernels.direct_weights import packed_weights, sources_of
from collage.backends.native_kernels.geometry import shape_struct, strides, three
from collage.backends.native_kernels.kernel import SharedKernel
from collage.backends.native_kernels.limits import Arrays, Needs, Numbers, direct_limits
from collage.backends.native_kernels.task import NativeTask
from collage.core.typed import typed
from collage.graph.storage import BLOCK, BLOCKED, CHANNELS_LAST
from collage.kernel.options import BuildOptions, Variant
from collage.native import NativeKernel
from collage.native.packed import Packed

ROWS, CHANNELS, WHOLE = "rows", "output channels", ""

_MOST_INPUTS = 32
_MOST_WASTE = 8
"""The most multiplications for each one that counts. The others are with zeros, where groups do not fill vectors."""
_MOST_WIDTH = 7
_MANY_WEIGHTS = 0.25
"""The share of a core's own cache from which on weights are many, so that channels are split.

1024 channels of 7x7 in groups of 32 take 56 us, and 71 by rows, on cores with 1 MB of L2. With fewer weights both
splits take the same time.
"""


class DirectConv(ChainAlgorithm):
    """Takes two or more groups of at most 32 inputs, with windows at most 7 wide at every column or every other one."""

    name = "direct_conv"
    roots = frozenset({"nn.conv1d", "nn.conv2d", "nn.conv3d"})
    function = "collage_direct_conv"

    def variants(self, task: NativeTask, build: BuildOptions) -> Sequence[Variant]:
        """Both layouts with channels innermost and the more even split, and one thread alone for small work."""
        conv = task.convolution.conv
        if problem := problem_of(conv):
            raise UnsupportedError(problem)
        splits = [_split(conv, build)] if build.threads > 1 else []
        if is_small(conv.flop, build):
            splits.append(WHOLE)
        layouts = BLOCKED, CHANNELS_LAST
        return [in_layout(task, layout, split) for layout in layouts for split in splits]

    def pack(self, task: NativeTask, build: BuildOptions) -> Packed:
        """The shape of the kernel, weights in the order in which they are read, and the bias."""
        convolution, variant = task.convolution, build.variant
        conv = convolution.scaled
        sources = sources_of(conv)
        (layout,) = variant.outputs
        batch, outputs, *_ = conv.dst
        spatial = {
            "in": three(conv.src[2:]),
            "out": three(conv.dst[2:]),
            "window": three(conv.weights.shape[2:]),
            "stride": three(conv.strides),
            "pad": three(conv.pad_begin, missing=0),
        }
        numbers = {
            "batch": batch,
            "inputs": conv.src[1],
            "outputs": outputs,
            "reach": sources.reach,
            "begin": sources.begin,
            "sources": [4 * block + exchange for seen in sources.of_vector for block, exchange in seen],
            **spatial,
            "from": strides(conv.src[1], spatial["in"], layout),
            "to": strides(outputs, spatial["out"], layout),
            "blocked": layout == BLOCKED,
            "by_vectors": variant.split == CHANNELS,
            "shares": 1 if variant.split == WHOLE else build.threads,
            "low": convolution.low,
            "high": convolution.high,
            "data": task.place(convolution.data),
            "residual": task.place(convolution.residual),
        }
        bias = np.zeros(-outputs % BLOCK + outputs, np.float32)
        if conv.bias is not None:
            bias[:outputs] = conv.bias
        return Packed(numbers, {"weights": packed_weights(conv, sources, spatial["window"]), "bias": bias})

    def load(self, packed: Packed, threads: int) -> NativeKernel:
        """A kernel whose shares read the same weights."""
        reach = [np.array(typed(list[int], packed.numbers[name]), np.int64) for name in ("begin", "sources")]
        return SharedKernel(
            self.function,
            _Shape,
            packed,
            threads,
            limits=self.limits,
            constants=[*reach, packed.arrays["weights"], packed.arrays["bias"]],
        )

    @staticmethod
    def limits(numbers: Numbers, arrays: Arrays) -> Needs:
        """The limits of the kernel."""
        return direct_limits(numbers, arrays)


def problem_of(conv: Conv) -> str:
    """Why the kernel does not take a convolution, or ""."""
    ins, outs = conv.src[1] // conv.groups, conv.dst[1] // conv.groups
    if conv.transposed or conv.groups == 1 or ins > _MOST_INPUTS:
        return f"there are {conv.groups} groups of {ins} channels"
    if any(each != 1 for each in conv.dilation):
        return "the window is dilated"
    if conv.weights.shape[-1] > _MOST_WIDTH or conv.strides[-1] > 2:
        return f"there is a window {conv.weights.shape[-1]} wide at every {conv.strides[-1]} columns"
    if sources_of(conv).per_output > _MOST_WASTE * ins:
        return f"there are groups of {ins} and {outs} channels"
    return ""


def _split(conv: Conv, build: BuildOptions) -> str:
    """Choose channels where weights are many, since each core then reads only its own; else the more even split."""
    if conv.weights.nbytes >= _MANY_WEIGHTS * build.speeds.own_cache_bytes:
        return CHANNELS
    rows, vectors = conv.dst[0] * math.prod(conv.dst[2:-1]), -(-conv.dst[1] // BLOCK)
    return min(
        (ROWS, CHANNELS), key=lambda split: _longest(rows if split == ROWS else vectors, build.threads)
    )


def _longest(units: int, threads: int) -> float:
    """The largest share as a fraction of the whole."""
    return -(-units // threads) / units


_Shape = shape_struct(
    *("batch", "inputs", "outputs", "reach"),
    *(("in", 3), ("out", 3), ("window", 3), ("stride", 3), ("pad", 3), ("from", 5), ("to", 5)),
    *("blocked", "by_vectors", "shares"),
)
"""``collage_direct_conv_shape``."""
