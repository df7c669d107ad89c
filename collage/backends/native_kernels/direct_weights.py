"""Which inputs the direct convolution multiplies for each vector of outputs, and its weights in that order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import accumulate

import numpy as np

from collage.backends.chains.chain import Floats
from collage.backends.chains.conv import Conv
from collage.graph.storage import BLOCK

_LANE = 4
"""The number of channels in 128 bits."""


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
