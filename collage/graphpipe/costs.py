"""Costs of a stage: its time per sample and its memory (§3.5; ESTIMATETPS, which the chapter leaves open)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from collage.graphpipe.cluster import Cluster, Link
from collage.graphpipe.graph import BlockGraph

Floats = npt.NDArray[np.float64]

EXTRA = ("weights", "state", "activations", "cut_bytes", "cuts", "update_s")
"""Columns of a stage's sums after its work at micro-batches of 1, 2, 4, ... samples (C++ reads them in this order)."""


@dataclass(frozen=True, eq=False)
class Costs:
    """Costs of the stages of a graph on a cluster, at a mini-batch.

    The sums of a stage are a row: seconds of a forward and a backward pass by micro-batch on a device, then ``EXTRA``:
    bytes of weights, bytes of weights with gradients and optimizer state, bytes of activations a sample, bytes a sample
    and the number of edges to other stages, and seconds of an update.
    """

    graph: BlockGraph
    cluster: Cluster
    mini_batch: int

    @property
    def tables(self) -> int:
        """The number of micro-batches that there are times for."""
        return len(self.graph.blocks[0].forward_s)

    @cached_property
    def rows(self) -> Floats:
        """A row for each block, without edges: [blocks, tables + 6]."""
        found = []
        for block in self.graph.blocks:
            work = np.add(block.forward_s, block.backward_s)
            state = block.weight_bytes * self.graph.state_factor
            found.append([*work, block.weight_bytes, state, block.activation_bytes, 0, 0, block.update_s])
        return np.array(found, np.float64)

    @cached_property
    def _sums(self) -> dict[frozenset[int], Floats]:
        return {}

    def sums(self, blocks: Iterable[int]) -> Floats:
        """The sums of a stage of these blocks."""
        inside = frozenset(blocks)
        found = self._sums.get(inside)
        if found is None:
            found = self.rows[sorted(inside)].sum(axis=0)
            cut = [each.nbytes for each in self.graph.edges if (each.source in inside) != (each.target in inside)]
            found[self.tables + 3 : self.tables + 5] = sum(cut), len(cut)
            self._sums[inside] = found
        return found

    @property
    def link(self) -> Link:
        """The link that the planner takes for all messages: the chapter has one bandwidth for all."""
        return self.cluster.among(self.cluster.devices)

    def tps(self, blocks: Iterable[int], b: int, devices: int) -> float:
        """The seconds per sample of a stage; infinite if its devices cannot share a micro-batch of ``b`` equally.

        (forward + backward + messages, at b / devices samples) / b + (all-reduce + update) / mini-batch. Of each edge
        to another stage a stage waits for one message: the later one in the forward pass, the earlier one in the
        backward pass.
        """
        share = b // devices
        if share * devices != b or share & (share - 1) or share >= 1 << self.tables:
            return float("inf")
        row = self.sums(blocks)
        weights, _, _, cut_bytes, cuts, update_s = row[self.tables :]
        messages = cuts * self.link.latency_s + cut_bytes * share / self.link.bandwidth
        once = self.cluster.among(devices).ring_s(weights, devices) + update_s
        return float((row[share.bit_length() - 1] + messages) / b + once / self.mini_batch)

    def memory(self, blocks: Iterable[int], in_flight: int, devices: int) -> float:
        """The bytes on each device of a stage: state, and activations of ``in_flight`` samples on all devices."""
        _, state, activations = self.sums(blocks)[self.tables : self.tables + 3]
        return float(state + activations * in_flight / devices)

    @cached_property
    def micro_batches(self) -> tuple[int, ...]:
        """All micro-batches that may be planned: powers of 2 that divide the mini-batch and that have times."""
        most = min(self.mini_batch, self.graph.largest_micro_batch * self.cluster.devices)
        return tuple(b for b in map((1).__lshift__, range(most.bit_length())) if self.mini_batch % b == 0 and b <= most)


@lru_cache
def degrees(devices: int) -> tuple[int, ...]:
    """The numbers of devices that a stage may have: powers of 2."""
    return tuple(1 << at for at in range(devices.bit_length()))
