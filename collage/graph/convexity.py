"""Convex sets of nodes, the values that escape from them, and the order in which the parts of a partition can run.

A kernel covers a set of nodes and runs as a whole. So no path may leave the set and come back (the set is convex), and
the kernels of a placement must not wait for each other in a circle (their quotient graph is acyclic). The first does
not imply the second.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from collage.errors import CollageError
from collage.graph.dataflow import Graph


class CyclicPlacementError(CollageError, ValueError):
    """Parts of a graph wait for each other in a circle; ``cycle`` holds their indices, each once."""

    def __init__(self, cycle: tuple[int, ...]) -> None:
        self.cycle = cycle
        path = " -> ".join(str(part) for part in (*cycle, *cycle[:1]))
        super().__init__(f"the parts wait for each other in a circle: {path}")


@dataclass(frozen=True, slots=True)
class Reachability:
    """For each of the consecutive nodes from ``first`` on, the nodes that it reaches and that reach it, as bit masks.

    Bit ``i`` stands for node ``first + i``. A node reaches itself. ``below[i]`` are the nodes that node ``first + i``
    reaches, and ``above[i]`` those that reach it. For n nodes and e edges it takes O(n + e) operations on n-bit
    integers, and n * n / 4 bytes of memory.
    """

    first: int
    below: tuple[int, ...]
    above: tuple[int, ...]

    @staticmethod
    def of(graph: Graph, first: int = 0, last: int | None = None) -> Reachability:
        """Compute it for the nodes ``first`` to ``last``, both included.

        Ids are a topological order, so a path between two nodes stays between their ids. For a set of nodes, only the
        nodes between its smallest and its largest id matter.
        """
        stop = len(graph.nodes) if last is None else last + 1
        above: list[int] = []
        for node in range(first, stop):
            mask = 1 << (node - first)
            for other in graph.predecessors[node]:
                if other >= first:
                    mask |= above[other - first]
            above.append(mask)
        below = [0] * (stop - first)
        for node in reversed(range(first, stop)):
            mask = 1 << (node - first)
            for other in graph.successors[node]:
                if other < stop:
                    mask |= below[other - first]
            below[node - first] = mask
        return Reachability(first, tuple(below), tuple(above))

    def closure(self, nodes: Collection[int]) -> int:
        """The mask of the given nodes and of all nodes on a path between two of them."""
        # One round is enough: a path between nodes of the closure extends to one between the given nodes.
        below = above = 0
        for node in nodes:
            below |= self.below[node - self.first]
            above |= self.above[node - self.first]
        return below & above

    def members(self, mask: int) -> tuple[int, ...]:
        """The ids of the nodes of a mask, ascending."""
        return tuple(self.first + bit for bit in bits(mask))


def bits(mask: int) -> Iterator[int]:
    """The indices of the bits of ``mask`` that are set, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def is_convex(graph: Graph, nodes: Collection[int], reach: Reachability | None = None) -> bool:
    """Whether no path between two of the nodes leaves the set.

    Pass ``reach`` (``Reachability.of(graph)``) when there are many sets to ask about: the answer then costs
    a few integer operations per node of the set, instead of a walk over all ids between its ends.
    """
    if reach is None:
        reach = Reachability.of(graph, min(nodes, default=0), max(nodes, default=-1))
    return reach.closure(nodes).bit_count() == len(set(nodes))


def nodes_between(graph: Graph, src: int, sink: int, reach: Reachability | None = None) -> tuple[int, ...]:
    """The ascending ids of all nodes on a path from ``src`` to ``sink``, both included; empty for no path."""
    if src > sink:
        return ()
    if reach is None:
        reach = Reachability.of(graph, src, sink)
    return reach.members(reach.below[src - reach.first] & reach.above[sink - reach.first])


def escaping(graph: Graph, nodes: Collection[int]) -> tuple[int, ...]:
    """The ids of values made inside the set that a node outside reads or that the graph returns, in node order."""
    inside = frozenset(nodes)
    return tuple(
        value
        for node in sorted(inside)
        for value in graph.nodes[node].outputs
        if value in graph.output_set or any(user not in inside for user in graph.users[value])
    )


def quotient_order(graph: Graph, parts: Sequence[Collection[int]]) -> list[int]:
    """The indices of disjoint parts in an order in which they can run; of ready ones, the lowest id comes first.

    Nodes in no part count as parts of their own, but are not listed. Raises ``CyclicPlacementError`` with the parts of
    a circle when there is no such order, and ``ValueError`` when parts overlap.
    """
    part_of = [-1] * len(graph.nodes)
    for index, part in enumerate(parts):
        for node in part:
            if part_of[node] >= 0:
                raise ValueError(f"node {node} is in the parts {part_of[node]} and {index}")
            part_of[node] = index
    first = [min(part, default=0) for part in parts]
    for node, index in enumerate(part_of):
        if index < 0:
            part_of[node] = len(first)
            first.append(node)

    before: list[set[int]] = [set() for _ in first]
    after: list[set[int]] = [set() for _ in first]
    for node, index in enumerate(part_of):
        for other in graph.predecessors[node]:
            if part_of[other] != index:
                before[index].add(part_of[other])
                after[part_of[other]].add(index)

    waits_for = [len(each) for each in before]
    ready = [(first[index], index) for index, count in enumerate(waits_for) if not count]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, index = heapq.heappop(ready)
        order.append(index)
        for other in after[index]:
            waits_for[other] -= 1
            if not waits_for[other]:
                heapq.heappush(ready, (first[other], other))
    if len(order) < len(first):
        cycle = [part for part in _cycle(before, after, set(order)) if part < len(parts)]
        start = cycle.index(min(cycle))  # a circle has no beginning, so the lowest index is named first
        raise CyclicPlacementError((*cycle[start:], *cycle[:start]))
    return [index for index in order if index < len(parts)]


def _cycle(before: Sequence[set[int]], after: Sequence[set[int]], done: set[int]) -> list[int]:
    """A shortest cycle through some part that is on one; each part that is not done waits for another such part."""
    at = next(index for index in range(len(before)) if index not in done)
    seen: set[int] = set()
    while at not in seen:
        seen.add(at)
        at = min(before[at] - done)
    came_from: dict[int, int] = {}
    queue = deque([at])
    while at not in came_from:
        here = queue.popleft()
        for other in sorted(after[here] - done):
            if other not in came_from:
                came_from[other] = here
                queue.append(other)
    cycle = [at]
    while came_from[cycle[-1]] != at:
        cycle.append(came_from[cycle[-1]])
    return cycle[::-1]
