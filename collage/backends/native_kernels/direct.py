"""Direct convolution for groups of few channels and for single ones, in float32 and bfloat16; see `direct_conv.cpp`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from itertools import accumulate

import numpy as np

from collage.backends.base import UnsupportedError
from collage.backends.chains.chain import Floats
from collage.backends.chains.conv import Conv
from collage.backends.native_kernels.algorithm import (
    CHANNELS,
    ROWS,
    WHOLE,
    ChainAlgorithm,
    in_layout,
    shared_or_whole,
)
from collage.backends.native_kernels.geometry import padded, shape_struct, strides, three
from collage.backends.native_kernels.kernel import CKernel
from collage.backends.native_kernels.limits import Arrays, Needs, Numbers, direct_limits
from collage.backends.native_kernels.task import NativeTask
from collage.errors import ModuleFileError
from collage.graph.storage import BF16, BLOCK, BLOCKED, CHANNELS_LAST, narrowed, widened
from collage.kernel.options import BuildOptions, Variant
from collage.native import NativeKernel
from collage.native.kernel_library import narrow_problem
from collage.native.packed import Packed

_MOST_INPUTS = 32
_MOST_WASTE = 8
"""The most multiplications for each one that counts. The others are with zeros, where groups do not fill vectors."""
_MOST_WIDTH = 7
_MANY_WEIGHTS = 1 << 18
"""The bytes from which on weights are many, so that channels are split: a quarter of a core's own cache.

With fewer weights both splits take the same time.
"""
_LANE = 4
"""The number of channels in 128 bits."""


_Shape = shape_struct(
    *("batch", "inputs", "outputs", "reach"),
    *(("in", 3), ("out", 3), ("window", 3), ("stride", 3), ("pad", 3), ("from", 5), ("to", 5)),
    *("blocked", "by_vectors", "shares"),
)
"""``collage_direct_conv_shape``."""


class DirectConv(ChainAlgorithm):
    """Takes two or more groups of at most 32 inputs, with windows at most 7 wide at every column or every other one."""

    name = "direct_conv"
    roots = frozenset({"nn.conv1d", "nn.conv2d", "nn.conv3d"})
    kernel = CKernel(*("collage_direct_conv", _Shape, direct_limits, ("weights", "bias")), lists=("begin", "sources"))

    def variants(self, task: NativeTask, build: BuildOptions) -> Sequence[Variant]:
        """Both layouts with channels innermost and the more even split, and one thread alone for small work."""
        conv = task.convolution.conv
        if problem := problem_of(conv):
            raise UnsupportedError(problem)
        splits = shared_or_whole(_split(conv, build), conv.flop, build)
        layouts = BLOCKED, CHANNELS_LAST
        return [in_layout(task, layout, split) for layout in layouts for split in splits]

    def pack(self, task: NativeTask, build: BuildOptions) -> Packed:
        """The shape of the kernel, weights in the order in which they are read, and the bias."""
        conv, variant = task.convolution.scaled, build.variant
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
            **task.numbers_of_convolution(),
        }
        weights = packed_weights(conv, sources, spatial["window"])
        return Packed(numbers, {"weights": weights, "bias": padded(conv.bias, outputs)})


def _narrow_limits(numbers: Numbers, arrays: Arrays) -> Needs:
    """The limits of the kernel with bfloat16 data and results, whose elements count as half a float."""
    needs = direct_limits(numbers, arrays)
    return Needs(needs.data / 2, needs.result / 2)


class Bf16DirectConv(DirectConv):
    """Takes what the direct convolution takes, so that narrow groups need no conversions between narrow kernels."""

    name = "bf16_direct_conv"
    precision = BF16
    kernel = replace(DirectConv.kernel, function="collage_bf16_direct_conv", limits=_narrow_limits)

    def variants(self, task: NativeTask, build: BuildOptions) -> Sequence[Variant]:
        """Return the variants of float32, with narrow storages on both sides."""
        if problem := narrow_problem():
            raise UnsupportedError(problem)
        return [
            Variant(
                tuple(narrowed(s, BF16) for s in each.inputs),
                tuple(narrowed(s, BF16) for s in each.outputs),
                each.split,
                BF16,
            )
            for each in super().variants(task, build)
        ]

    def pack(self, task: NativeTask, build: BuildOptions) -> Packed:
        """The same as for float32, since steps count elements and the weights stay wide."""
        variant = build.variant
        inputs, outputs = (tuple(map(widened, side)) for side in (variant.inputs, variant.outputs))
        return super().pack(task, replace(build, variant=Variant(inputs, outputs, variant.split)))

    def load(self, packed: Packed, threads: int) -> NativeKernel:
        """A kernel whose shares read the same weights. Raises ModuleFileError if this CPU cannot run it."""
        if problem := narrow_problem():
            raise ModuleFileError(f"{problem}: compile the model here.")
        return super().load(packed, threads)


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
    """Choose channels if weights are many, since each core then reads only its own; else the more even split."""
    if conv.weights.nbytes >= _MANY_WEIGHTS:
        return CHANNELS
    rows, vectors = conv.dst[0] * math.prod(conv.dst[2:-1]), -(-conv.dst[1] // BLOCK)
    return min((ROWS, CHANNELS), key=lambda split: _longest(rows if split == ROWS else vectors, build.threads))


def _longest(units: int, threads: int) -> float:
    """The largest share as a fraction of the whole."""
    return -(-units // threads) / units


class Reach(IntEnum):
    """Which inputs an output sees (see direct_conv.h)."""

    ITSELF = 0
    SAME_128_BITS = 1
    SAME_256_BITS = 2
    LISTED = 3


@dataclass(frozen=True)
class Sources:
    """The vectors of inputs that each vector of outputs sees, and how their 128 bits are exchanged."""

    reach: Reach
    of_vector: tuple[tuple[tuple[int, int], ...], ...]

    @cached_property
    def begin(self) -> tuple[int, ...]:
        """Where each vector's sources begin in the list of all sources, and the length of that list."""
        return tuple(accumulate((len(each) for each in self.of_vector), initial=0))

    @property
    def per_output(self) -> float:
        """Multiplications for each output and each point of the window, on average."""
        return self.begin[-1] / len(self.of_vector) * (1 if self.reach is Reach.ITSELF else _LANE)


def sources_of(conv: Conv) -> Sources:
    """The fewest sources that cover the groups, wherever their channels lie in vectors."""
    ins, outs = conv.src[1] // conv.groups, conv.dst[1] // conv.groups
    vectors = range(-(-conv.dst[1] // BLOCK))
    if ins == outs == 1:
        return Sources(Reach.ITSELF, tuple(((v, 0),) for v in vectors))
    narrow = {1: Reach.SAME_128_BITS, 2: Reach.SAME_128_BITS, 4: Reach.SAME_128_BITS, 8: Reach.SAME_256_BITS}
    reach = narrow.get(ins, Reach.LISTED) if ins == outs else Reach.LISTED
    found: list[set[tuple[int, int]]] = [set() for _ in vectors]
    for group in range(conv.groups):
        for target in _lanes(group * outs, (group + 1) * outs):
            for source in _lanes(group * ins, (group + 1) * ins):
                found[target // _LANE].add((source // _LANE, source % _LANE ^ target % _LANE))
    if reach is Reach.SAME_256_BITS:
        found = [{(v, 0), (v, 1)} for v in vectors]  # this also serves a last group that fills half a vector
    return Sources(reach, tuple(tuple(sorted(each)) for each in found))


def packed_weights(conv: Conv, sources: Sources, window: Sequence[int]) -> Floats:
    """The weights as `direct_conv.h` has them, with zeros where output and input are not in one group.

    ``window`` is (planes, rows, columns), at least as large as the weights are.
    """
    outputs, inputs = conv.dst[1], conv.src[1]
    ins, outs = inputs // conv.groups, outputs // conv.groups
    weights = np.zeros((outputs, ins, *window), np.float32)
    planes, rows, columns = (1, 1, 1, *conv.weights.shape[2:])[-3:]
    weights[:, :, :planes, :rows, :columns] = conv.weights.reshape(outputs, ins, planes, rows, columns)
    rotation, lane = np.ogrid[: 1 if sources.reach is Reach.ITSELF else _LANE, :BLOCK]
    packed = []
    for vector, seen in enumerate(sources.of_vector):
        block, exchange = np.array(seen).T.reshape(2, -1, 1, 1)
        source = block * BLOCK + (lane // _LANE ^ exchange) * _LANE + lane % _LANE
        target = vector * BLOCK + lane // _LANE * _LANE + (lane + rotation) % _LANE
        source, target = np.broadcast_arrays(source, target)
        if sources.reach is Reach.ITSELF:
            target = source
        group = target // outs
        inside = (source < inputs) & (target < outputs) & (source // ins == group)
        found = weights[np.where(inside, target, 0), np.where(inside, source - group * ins, 0)]
        found[~inside] = 0
        packed.append(found.transpose(3, 4, 0, 5, 1, 2).reshape(-1))
    return np.concatenate(packed)


def _lanes(start: int, stop: int) -> range:
    """The numbers of the 128 bits in which these channels lie."""
    return range(start // _LANE, (stop - 1) // _LANE + 1)
