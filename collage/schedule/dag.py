"""What must run before what: the launches of a program as a directed acyclic graph."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from collage.graph.convexity import bits


@dataclass(frozen=True)
class Dag:
    """A graph of the nodes 0 to n - 1, which are a topological order.

    ``predecessors[v]`` are nodes smaller than v, ascending, each once.
    """

    predecessors: tuple[tuple[int, ...], ...]

    @staticmethod
    def of_edges(count: int, edges: Iterable[tuple[int, int]]) -> Dag:
        """The graph with these edges. Raises ValueError for one that does not lead from a lower to a higher node."""
        before: list[set[int]] = [set() for _ in range(count)]
        for u, v in edges:
            if not 0 <= u < v < count:
                raise ValueError(f"the edge {u} -> {v} is not in the order of {count} nodes")
            before[v].add(u)
        return Dag(tuple(tuple(sorted(each)) for each in before))

    def __len__(self) -> int:
        return len(self.predecessors)

    @property
    def edges(self) -> list[tuple[int, int]]:
        """All edges, in the order of their ends."""
        return [(u, v) for v, before in enumerate(self.predecessors) for u in before]

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """For each node, the nodes that read its results, ascending."""
        found: list[list[int]] = [[] for _ in self.predecessors]
        for u, v in self.edges:
            found[u].append(v)
        return tuple(map(tuple, found))

    @cached_property
    def beside_others(self) -> frozenset[int]:
        """The nodes for each of which there is another node that neither comes before it nor after it."""
        counts = [mask.bit_count() for mask in self.ancestors]
        for mask in self.ancestors:
            for ancestor in bits(mask):
                counts[ancestor] += 1
        return frozenset(v for v, count in enumerate(counts) if count < len(counts) - 1)

    @cached_property
    def ancestors(self) -> tuple[int, ...]:
        """For each node, the set of all nodes that must run before it: bit u stands for node u."""
        found: list[int] = []
        for before in self.predecessors:
            mask = 0
            for u in before:
                mask |= found[u] | 1 << u
            found.append(mask)
        return tuple(found)

    def minimum_equivalent(self) -> Dag:
        """The graph with the fewest edges and the same ancestors (the minimum equivalent graph, unique for a DAG)."""
        kept = []
        for before in self.predecessors:
            covered, mine = 0, []
            for u in reversed(before):
                if not covered >> u & 1:
                    mine.append(u)
                    covered |= self.ancestors[u] | 1 << u
            kept.append(tuple(reversed(mine)))
        return Dag(tuple(kept))

    def independent(self, u: int, v: int) -> bool:
        """Whether neither must run before the other."""
        return not (self.ancestors[max(u, v)] >> min(u, v) & 1)

    @property
    def width(self) -> int:
        """A lower bound on the most nodes of which no two depend on each other, found by a greedy algorithm."""
        alive: list[int] = []
        most = 0
        for v, before in enumerate(self.predecessors):
            alive = [u for u in alive if u not in before and self.independent(u, v)]
            alive.append(v)
            most = max(most, len(alive))
        return most
