"""Changing a value's layout between kernels: what it costs, and which changes a set of candidates needs.

A candidate takes and gives its values in layouts of its own. Where a reader wants another layout than the
writer's, a conversion stands between them: a kernel with a measured cost, made once for all readers that want
the same. Graph inputs and outputs are plain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from collage.graph.dataflow import Graph
from collage.graph.layout import Layout

if TYPE_CHECKING:
    from collage.search.candidate import Candidate

Change: TypeAlias = "tuple[int, Layout, Layout]"
"""A value's id, the layout it is in, and the one it is wanted in."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """A kernel that brings ``value`` from one layout to another, with its cost in microseconds."""

    value: int
    source: Layout
    target: Layout
    cost_us: float


def stored_layouts(graph: Graph, candidates: Iterable[Candidate]) -> dict[int, Layout]:
    """Values that the candidates leave in memory in another layout than the plain one."""
    return {value: layout for c in candidates for value, layout in c.writes}


def changes(graph: Graph, candidates: Iterable[Candidate]) -> list[Change]:
    """The conversions that the candidates need among them, each once, by value."""
    chosen = list(candidates)
    stored = stored_layouts(graph, chosen)
    wanted: set[tuple[int, Layout]] = {(v, Layout.PLAIN) for v in graph.outputs}
    for candidate in chosen:
        layouts = dict(candidate.reads)
        inside = set(candidate.nodes)
        for node in candidate.nodes:
            for value in graph.nodes[node].inputs:
                if graph.values[value].producer not in inside and not graph.is_constant(value):
                    wanted.add((value, layouts.get(value, Layout.PLAIN)))
    found = [
        (value, stored.get(value, Layout.PLAIN), layout)
        for value, layout in wanted
        if stored.get(value, Layout.PLAIN) is not layout
    ]
    return sorted(found, key=lambda change: (change[0], change[2].value))


def conversions(
    graph: Graph, candidates: Iterable[Candidate], costs: Mapping[Change, float]
) -> tuple[Conversion, ...]:
    """The conversions with their costs. Raises KeyError for a change that cannot be made."""
    return tuple(Conversion(*change, costs[change]) for change in changes(graph, candidates))
