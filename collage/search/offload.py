"""Strings of digits that say which operators go to a graph engine, and the placement that such a string means.

Section 2.4.3: each digit is for something that the op-level placement left to kernels. The digit 0 keeps that decision;
any other digit names the engine that takes it over. What the op-level placement gave to an engine has no digit.

Engines are faster with much in one region, but a region has to be convex, and regions must not wait for each other. So
a string is repaired when it is decoded. Parts are taken in an order in which they can run: first those without an
engine, then all ready ones of one engine, and so on. Each region is an interval of that order, hence convex, and none
waits for a later one. Two parts on one engine with another one between them become two regions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TypeAlias

from collage.graph.dataflow import Graph
from collage.graph.order import cut_positions
from collage.search.candidate import Candidate
from collage.search.placement import Placement

Genome: TypeAlias = tuple[int, ...]
"""A digit for each gene."""

_ABOUT_AS_FAST = 1.1
"""An engine is about as fast as the op level on a part if it takes at most this many times as long."""
MOST_GENES = 48
"""The most genes. With more parts than that, all parts between two cuts of the network (the layers of a transformer)
share one gene, because a trial takes seconds, so that there is time for a few hundred only."""


@dataclass(frozen=True)
class Gene:
    """The indices of ``parts`` that move together, and the digits that they may have (0 first).

    Genes of equal ``kind`` do the same work in another part of the network, such as a layer that repeats.
    """

    parts: tuple[int, ...]
    choices: tuple[int, ...]
    kind: str


@dataclass(frozen=True)
class Offloaded:
    """The meaning of a string of digits: candidates of the op level that stay, and regions of engines.

    A region has ascending node ids and an engine's name. Candidates and regions are in an order in which they can run.
    """

    kept: tuple[Candidate, ...]
    regions: tuple[tuple[tuple[int, ...], str], ...]


@dataclass(frozen=True)
class Encoding:
    """The op-level placement's ``parts`` in launch order, the engines (digit 1 is the first), and the genes.

    Backends in ``free`` run nothing (views): such a part joins an engine's region that reads it and is read by it.
    """

    graph: Graph
    parts: tuple[Candidate, ...]
    engines: tuple[str, ...]
    genes: tuple[Gene, ...]
    free: frozenset[str]

    @property
    def op_level(self) -> Genome:
        """The string of zeros, which means the op-level placement itself."""
        return (0,) * len(self.genes)

    def all_on(self, engine: str) -> Genome:
        """The string that gives the engine all that it can run."""
        digit = self.engines.index(engine) + 1
        return tuple(digit if digit in gene.choices else 0 for gene in self.genes)

    def seeds(self, candidates: Sequence[Candidate]) -> list[Genome]:
        """The op level, and for each engine two strings: all that it can take, and what it is about as fast on.

        ``candidates`` have the times of engines by themselves.
        """
        seeds = [self.op_level, *map(self.all_on, self.engines)]
        for digit, engine in enumerate(self.engines, start=1):
            alone_us = {c.nodes: c.cost_us for c in candidates if c.backend == engine}
            near = {
                index
                for index, part in enumerate(self.parts)
                if part.nodes in alone_us and alone_us[part.nodes] <= _ABOUT_AS_FAST * part.cost_us
            }
            seeds.append(tuple(digit if digit in g.choices and near.issuperset(g.parts) else 0 for g in self.genes))
        return list(dict.fromkeys(seeds))

    def decode(self, genome: Genome) -> Offloaded:
        """The repaired placement of the string."""
        wanted = [part.backend if part.backend in self.engines else "" for part in self.parts]
        for gene, digit in zip(self.genes, genome, strict=True):
            for index in gene.parts:
                wanted[index] = self.engines[digit - 1] if digit else ""
        kept: list[Candidate] = []
        regions: list[tuple[tuple[int, ...], str]] = []
        for group in self._groups(wanted):
            engine, first = wanted[group[0]], self.parts[group[0]]
            if not engine or (len(group) == 1 and first.backend == engine):
                kept += [self.parts[index] for index in group]
            else:
                regions.append((tuple(sorted(n for index in group for n in self.parts[index].nodes)), engine))
        return Offloaded(tuple(kept), tuple(regions))

    def _groups(self, wanted: Sequence[str]) -> list[list[int]]:
        """Groups of parts that each become one launch, in launch order; the first part of a group has its engine."""
        before = [set(each) for each in self._before]
        ready = {index for index, waits in enumerate(before) if not waits}
        groups: list[list[int]] = []

        def take(index: int) -> None:
            ready.discard(index)
            groups[-1].append(index)
            for user in self._after[index]:
                before[user].discard(index)
                if not before[user]:
                    ready.add(user)

        while ready:
            on_kernels = [index for index in ready if not wanted[index]]
            if on_kernels:
                groups.append([])
                take(min(on_kernels))
                continue
            engine = wanted[min(ready)]
            groups.append([])
            while fitting := [i for i in ready if wanted[i] == engine or self._goes_along(i, groups[-1])]:
                take(min(fitting))
            groups[-1:] = self._without_loose_ends(groups[-1])
        return groups

    def _goes_along(self, index: int, group: Collection[int]) -> bool:
        """Whether the part runs nothing and reads from the group."""
        return self.parts[index].backend in self.free and not self._before[index].isdisjoint(group)

    def _without_loose_ends(self, group: list[int]) -> list[list[int]]:
        """The group without its views that nothing in it reads, followed by each of these as a group of its own."""
        inside, ends = set(group), []
        for index in reversed(group):
            if self.parts[index].backend in self.free and inside.isdisjoint(self._after[index]):
                inside.discard(index)
                ends.append([index])
        return [[index for index in group if index in inside], *reversed(ends)]

    @cached_property
    def _before(self) -> tuple[frozenset[int], ...]:
        """For each part, the parts that it reads from."""
        part_of = {node: index for index, part in enumerate(self.parts) for node in part.nodes}
        return tuple(
            frozenset(part_of[p] for node in part.nodes for p in self.graph.predecessors[node]) - {index}
            for index, part in enumerate(self.parts)
        )

    @cached_property
    def _after(self) -> tuple[frozenset[int], ...]:
        """For each part, the parts that read from it."""
        after: list[set[int]] = [set() for _ in self.parts]
        for index, those in enumerate(self._before):
            for other in those:
                after[other].add(index)
        return tuple(map(frozenset, after))


def encode(
    graph: Graph,
    placement: Placement,
    able: Mapping[str, Collection[int]],
    kind_of: Callable[[Candidate], str],
    free: Collection[str],
    *,
    most_genes: int = MOST_GENES,
) -> Encoding:
    """Encode an op-level placement.

    ``able`` has the nodes that each engine can run. ``kind_of`` gives equal texts for candidates that do the same work
    (``Subgraph.digest``), and ``free`` are the backends that run nothing. There are at most ``most_genes`` genes.
    """
    parts, engines = placement.candidates, tuple(able)
    movable = [index for index, part in enumerate(parts) if part.backend not in able and part.backend not in free]
    if len(movable) > most_genes:
        blocks = _blocks(graph, parts, most_genes)
    else:
        blocks = [[index] for index in movable]
    can_move = set(movable)
    genes = []
    for block in blocks:
        inside = [index for index in block if index in can_move]
        nodes = [node for index in inside for node in parts[index].nodes]
        digits = [d for d, engine in enumerate(engines, start=1) if able[engine] and set(nodes) <= set(able[engine])]
        if inside and digits:
            kind = "+".join(kind_of(parts[index]) for index in inside)
            genes.append(Gene(tuple(inside), (0, *digits), kind))
    return Encoding(graph, parts, engines, tuple(genes), frozenset(free))


def _blocks(graph: Graph, parts: Sequence[Candidate], most: int) -> list[list[int]]:
    """The indices of the parts between cuts of the graph, in ``most`` blocks or fewer."""
    order = [node for part in parts for node in part.nodes]
    edges = {0: 0}
    for index, part in enumerate(parts):
        edges[max(edges) + len(part.nodes)] = index + 1
    # Launch order is a topological one, and a cut inside a part is none between parts.
    cuts = [cut for cut in cut_positions(graph, order) if cut in edges]
    least = len(order) / most
    kept = [0]
    for cut in cuts:
        if cut - kept[-1] >= least and len(order) - cut >= least:
            kept.append(cut)
    return [list(range(edges[a], edges[b])) for a, b in pairwise([*kept, len(order)])]
