"""Blocks of nodes: few, of similar work, and only at places where the graph can be cut.

A block is a region with a single entry, or a piece of a chain, so that branches stay apart (§3.4).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from collage.graphpipe.graph import nearest_dominators, reached, topological_order

MOST_BLOCKS = 32
"""The most blocks that a network is divided into, if its branches allow it."""

_LIGHT = 0.5
"""The share of a block of average work below which nodes join a neighbour, also one in a fork or join."""
_GROWTH = 1.25
"""How much of their heaviest node's work such blocks may have."""


def coarsened(
    order: Sequence[str],
    arcs: Iterable[tuple[str, str]],
    bound: Iterable[tuple[str, str]],
    work: Mapping[str, float],
    most: int = MOST_BLOCKS,
) -> tuple[tuple[str, ...], ...]:
    """Blocks of the nodes ``order`` in a topological order, with the nodes of each in that order.

    The nodes of a ``bound`` pair are in one block. All else that is between two nodes of a block is in it, too.
    """
    groups = _Groups(order, arcs, bound, work)
    total = sum(work.values()) or 1.0
    light = limit = total * _LIGHT / most
    groups.merge(limit, light)
    while len(groups.members) > most and limit < total:
        limit *= 1.5
        groups.merge(limit, light)
    position = {name: at for at, name in enumerate(order)}
    blocks = [tuple(sorted(groups.members[at], key=position.__getitem__)) for at in groups.order()]
    return tuple(blocks)


class _Groups:
    """Nodes in groups, as a directed acyclic graph of groups with their work."""

    def __init__(
        self,
        order: Sequence[str],
        arcs: Iterable[tuple[str, str]],
        bound: Iterable[tuple[str, str]],
        work: Mapping[str, float],
    ) -> None:
        import networkx as nx

        number = {name: at for at, name in enumerate(order)}
        arcs = [*arcs]
        graph = nx.DiGraph(arcs)
        graph.add_nodes_from(order)
        for one, other in bound:
            graph.add_edge(one, other)
            graph.add_edge(other, one)
        parts = sorted(nx.strongly_connected_components(graph), key=lambda part: min(map(number.__getitem__, part)))
        home = {name: at for at, part in enumerate(parts) for name in part}
        self.members: dict[int, set[str]] = dict(enumerate(map(set, parts)))
        self.work = {at: sum(work[name] for name in sorted(part, key=number.__getitem__)) for at, part in
                     self.members.items()}  # fmt: skip
        self.heaviest = dict(self.work)
        self.after: dict[int, set[int]] = {at: set() for at in self.members}
        self.before: dict[int, set[int]] = {at: set() for at in self.members}
        for one, other in arcs:
            if home[one] != home[other]:
                self.after[home[one]].add(home[other])
                self.before[home[other]].add(home[one])

    def order(self) -> list[int]:
        """The groups in a topological order, branch by branch."""
        found: list[int] = []
        waits = {at: len(each) for at, each in self.before.items()}
        todo = sorted((at for at, count in waits.items() if not count), reverse=True)
        while todo:
            at = todo.pop()
            found.append(at)
            for other in sorted(self.after[at], reverse=True):
                waits[other] -= 1
                if not waits[other]:
                    todo.append(other)
        return found

    def merge(self, limit: float, light: float) -> None:
        """Merge light groups, and regions with a single entry and neighbours in chains up to ``limit``."""
        while self._light(limit, light) or self._regions(limit) or self._chains(limit):
            pass

    def _light(self, limit: float, light: float) -> bool:
        """Merge a light group with the only group that it reads from, or the only one that reads from it."""
        changed = False
        for at in self.order():
            near = [each for each in (self.before[at], self.after[at]) if len(each) == 1]
            for other in (next(iter(each)) for each in near if self.work[at] <= light):
                if self.work[at] + self.work[other] <= max(limit, _GROWTH * self.heaviest[other]):
                    self._into(other, {at})
                    changed = True
                    break
        return changed

    def _chains(self, limit: float) -> bool:
        """Merge the lightest pair of neighbours in a chain."""
        pairs = [
            (self.work[at] + self.work[other], at, other)
            for at in self.order()
            if len(self.after[at]) == 1
            for other in self.after[at]
            if len(self.before[other]) == 1 and self.work[at] + self.work[other] <= limit
        ]
        if pairs:
            _, at, other = min(pairs)
            self._into(at, {other})
        return bool(pairs)

    def _regions(self, limit: float) -> bool:
        """Merge what is between a group and its post-dominator, which it dominates, with that one."""
        first, last = -1, max(self.members) + 1
        afters = {at: sorted(each) or [last] for at, each in self.after.items()}
        befores = {at: sorted(each) or [first] for at, each in self.before.items()}
        afters[first] = [at for at, each in self.before.items() if not each]
        befores[last] = [at for at, each in self.after.items() if not each]
        order = topological_order(befores, afters)
        down, up = nearest_dominators(order, befores), nearest_dominators([*reversed(order)], afters)
        changed = False
        for entry, end in down.items():
            if entry == first or end is None or end == last or up[end] != entry:
                continue
            inner = reached(entry, end, afters) & reached(end, entry, befores)
            inside = {*inner, end}
            if inner and inside <= {*self.members} and sum(self.work[at] for at in sorted(inside)) <= limit:
                self._into(end, inner)
                changed = True
        return changed

    def _into(self, kept: int, others: set[int]) -> None:
        """Add groups to another one."""
        for at in sorted(others):
            self.members[kept] |= self.members.pop(at)
            self.work[kept] += self.work.pop(at)
            self.heaviest[kept] = max(self.heaviest[kept], self.heaviest.pop(at))
            for other in self.after.pop(at):
                self.before[other].discard(at)
                if other != kept:
                    self.before[other].add(kept)
                    self.after[kept].add(other)
            for other in self.before.pop(at):
                self.after[other].discard(at)
                if other != kept:
                    self.after[other].add(kept)
                    self.before[kept].add(other)
        self.after[kept].discard(kept)
        self.before[kept].discard(kept)
