"""Layout transforms between kernels: which of them a set of candidates needs, and what they cost.

A candidate reads and writes its values in storages of its own. Where a reader wants another storage than the writer's,
there is a layout transform between them: a kernel with a measured cost, which runs once for all readers that want the
same storage. It changes the format, or copies to another device. Graph inputs and outputs are plain, on the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from collage.graph.dataflow import Graph
from collage.graph.storage import PLAIN, Storage
from collage.kernel.transform import LayoutTransform

if TYPE_CHECKING:
    from collage.search.candidate import Candidate

ValueTransform: TypeAlias = "tuple[int, LayoutTransform]"
"""A value's id, and the transform of it."""


@dataclass(frozen=True, slots=True)
class PlacedTransform:
    """A layout transform of ``value`` in a placement, with its cost in microseconds."""

    value: int
    transform: LayoutTransform
    cost_us: float


def needed_transforms(graph: Graph, candidates: Iterable[Candidate]) -> list[ValueTransform]:
    """The layout transforms that are needed between the candidates, each once, in the order of values."""
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
    return [
        (value, LayoutTransform(graph.type_of(value), stored.get(value, PLAIN), storage))
        for value, storage in sorted(wanted)
        if stored.get(value, PLAIN) != storage
    ]


def placed_transforms(
    graph: Graph, candidates: Iterable[Candidate], costs: Mapping[ValueTransform, float]
) -> tuple[PlacedTransform, ...]:
    """The needed layout transforms with their ``costs`` in microseconds. Raises KeyError for one without a cost."""
    return tuple(PlacedTransform(*each, costs[each]) for each in needed_transforms(graph, candidates))
