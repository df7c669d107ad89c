"""Changing a value's storage between kernels: what it costs, and which changes a set of candidates needs.

A candidate takes and gives its values in storages of its own. Where a reader wants another storage than the
writer's, a conversion stands between them: a kernel with a measured cost, made once for all readers that want
the same. It changes the layout, or copies to another device. Graph inputs and outputs are plain, on the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from collage.graph.dataflow import Graph
from collage.graph.storage import PLAIN, Storage

if TYPE_CHECKING:
    from collage.search.candidate import Candidate

Change: TypeAlias = "tuple[int, Storage, Storage]"
"""A value's id, the storage it is in, and the one it is wanted in."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """A kernel that brings ``value`` from one storage to another, with its cost in microseconds."""

    value: int
    source: Storage
    target: Storage
    cost_us: float


def changes(graph: Graph, candidates: Iterable[Candidate]) -> list[Change]:
    """The conversions that the candidates need among them, each once, by value."""
    chosen = list(candidates)
    stored = {value: storage for c in chosen for value, storage in c.writes}
    wanted: set[tuple[int, Storage]] = {(v, PLAIN) for v in graph.outputs}
    for candidate in chosen:
        storages = dict(candidate.reads)
        inside = set(candidate.nodes)
        for node in candidate.nodes:
            for value in graph.nodes[node].inputs:
                if graph.values[value].producer not in inside and not graph.is_constant(value):
                    wanted.add((value, storages.get(value, PLAIN)))
    found = [
        (value, stored.get(value, PLAIN), storage)
        for value, storage in wanted
        if stored.get(value, PLAIN) != storage
    ]
    return sorted(found, key=lambda change: (change[0], change[2]))


def conversions(
    graph: Graph, candidates: Iterable[Candidate], costs: Mapping[Change, float]
) -> tuple[Conversion, ...]:
    """The conversions with their costs. Raises KeyError for a change that cannot be made."""
    return tuple(Conversion(*change, costs[change]) for change in changes(graph, candidates))
