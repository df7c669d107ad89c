"""Which inputs the direct convolution multiplies for each vector of outputs, and its weights in that order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collage.backends.onednn_kernels.chain import Floats
from collage.backends.onednn_kernels.conv import Conv
from collage.graph.layout import BLOCK


@dataclass(frozen=True)
class Reach:
    """A vector of outputs sees ``blocks`` vectors of inputs from number ``first`` on; see direct_conv.h."""

    rotations: int
    exchanges: int
    blocks: int
    first: tuple[int, ...]

    @property
    def inputs(self) -> int:
        """Multiplications for each output and each point of the window."""
        return self.rotations * self.exchanges * self.blocks


def reach_of(conv: Conv) -> Reach:
    """The fewest multiplications that cover the groups, wherever their channels lie in vectors."""
    ins, outs = conv.src[1] // conv.groups, conv.dst[1] // conv.groups
    spans = []
    for begin in range(0, conv.dst[1], BLOCK):
        end = min(begin + BLOCK, conv.dst[1])
        spans.append((begin // outs * ins // BLOCK, (((end - 1) // outs + 1) * ins - 1) // BLOCK))
    blocks = max(last - first + 1 for first, last in spans)
    latest = -(-conv.src[1] // BLOCK) - blocks
    first = tuple(min(first, latest) for first, _ in spans)
    if ins == outs == 1:
        return Reach(1, 1, blocks, first)
    exchanges = (1 if 4 % ins == 0 else 2 if ins == 8 else 4) if ins == outs else 4
    return Reach(4, exchanges, blocks, first)


def packed_weights(conv: Conv, reach: Reach, window: Sequence[int]) -> Floats:
    """The weights as `direct_conv.h` has them, zeros where output and input are in no or in different groups.

    ``window`` is (planes, rows, columns), at least as large as the weights are.
    """
    outputs, inputs = conv.dst[1], conv.src[1]
    ins, outs = inputs // conv.groups, outputs // conv.groups
    vector, block, exchange, rotation, lane = np.ogrid[
        : len(reach.first), : reach.blocks, : reach.exchanges, : reach.rotations, :BLOCK
    ]
    first = np.array(reach.first).reshape(vector.shape)
    source = (first + block) * BLOCK + (lane // 4 ^ exchange) * 4 + lane % 4
    target = vector * BLOCK + lane // 4 * 4 + (lane + rotation) % 4
    source, target = np.broadcast_arrays(source, target)
    group = target // outs
    inside = (source < inputs) & (target < outputs) & (source // ins == group)
    shape = conv.weights.shape[2:]
    weights = np.zeros((outputs, ins, *window), np.float32)
    weights[:, :, : (1, 1, *shape)[-3], : (1, *shape)[-2], : shape[-1]] = conv.weights.reshape(
        outputs, ins, *(1,) * (3 - len(shape)), *shape
    )
    found = weights[np.where(inside, target, 0), np.where(inside, source - group * ins, 0)]
    found[~inside] = 0
    return np.ascontiguousarray(found.transpose(0, 5, 6, 1, 2, 7, 3, 4))
