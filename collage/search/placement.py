"""Placements, which the search returns, and checks of them and of candidates (section 2.4.1)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from collage.errors import NoPlacementError
from collage.graph.convexity import Reachability, is_convex, quotient_order
from collage.graph.dataflow import Graph
from collage.graph.storage import Storage
from collage.search.candidate import Candidate
from collage.search.transforms import PlacedTransform, ValueTransform, placed_transforms

_Interface = tuple[tuple[int, ...], tuple[tuple[int, Storage], ...], tuple[tuple[int, Storage], ...]]

NO_TRANSFORMS: Mapping[ValueTransform, float] = MappingProxyType({})
"""The costs of layout transforms where all candidates are plain, so that none is needed."""

_NAMED = 20
"""The most nodes that an error message names; it counts the others."""


class UncoveredError(NoPlacementError):
    """Some ``nodes`` are covered by no candidate."""

    def __init__(self, graph: Graph, nodes: tuple[int, ...]) -> None:
        named = ", ".join(_name(graph, node) for node in nodes[:_NAMED])
        super().__init__(f"no candidate that can run as one kernel covers {named}{_and_more(nodes)}", nodes)


@dataclass(frozen=True, slots=True)
class Placement:
    """Candidates that cover each node once, in launch order, and the layout transforms between them.

    ``predicted_us`` is Cost(P(G)) of Eq. 2.2 in microseconds: their costs, context switches and layout transforms.
    ``exact`` is False when the search had to drop states, so that a cheaper placement may exist. ``price_us`` is what a
    unit of error was worth to a search under an error budget; 0 where the budget did not matter.
    """

    candidates: tuple[Candidate, ...]
    predicted_us: float
    exact: bool = True
    transforms: tuple[PlacedTransform, ...] = ()
    price_us: float = field(default=0.0, compare=False)

    @property
    def error(self) -> float:
        """The sum of the candidates' errors (see ``Candidate.error``)."""
        return math.fsum(c.error for c in self.candidates)


def check_placement(graph: Graph, candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Check that the candidates are a placement, and return them in launch order.

    Raises ``ValueError`` unless they cover each node exactly once, and its subclass ``CyclicPlacementError`` when they
    wait for each other in a circle.
    """
    times = [0] * len(graph.nodes)
    for candidate in candidates:
        _check_ids(graph, candidate)
        for node in candidate.nodes:
            times[node] += 1
    if wrong := [node for node, count in enumerate(times) if count != 1]:
        raise ValueError(
            "a placement covers each node once, but these are covered "
            + ", ".join(f"{times[node]} times: {_name(graph, node)}" for node in wrong[:_NAMED])
            + _and_more(wrong)
        )
    order = quotient_order(graph, [candidate.nodes for candidate in candidates])
    return tuple(candidates[index] for index in order)


def finish(
    graph: Graph,
    chosen: Sequence[Candidate],
    epsilon_us: float,
    *,
    exact: bool = True,
    transforms_us: Mapping[ValueTransform, float] = NO_TRANSFORMS,
) -> Placement:
    """Check chosen candidates, and make a placement of them, with the predicted cost of Eq. 2.2.

    Raises what ``check_placement`` does, and KeyError when a layout transform is needed that ``transforms_us`` has no
    cost for.
    """
    launch = check_placement(graph, chosen)
    between = placed_transforms(graph, launch, transforms_us)
    kernels = math.fsum(c.cost_us + epsilon_us * c.switches for c in launch)
    return Placement(launch, kernels + math.fsum(c.cost_us for c in between), exact, between)


def charge_us(candidate: Candidate, epsilon_us: float, margin: float) -> float:
    """The candidate's term of the sum that the search minimises, in microseconds.

    It is M(P(g)) + epsilon (Eq. 2.3) + margin * noise. With the last term a candidate has to win by more than the
    noise: with ``margin`` = 1 it counts as slower than measured by its ``noise_us``. Of two placements that are about
    as fast, the one measured with more certainty wins, and one in many pieces is charged the noise of each. The charge
    is additive, so the search stays exact. With ``margin`` = 0 the problem is the paper's.
    """
    return candidate.cost_us + epsilon_us * candidate.switches + margin * candidate.noise_us


def contenders(
    graph: Graph, candidates: Sequence[Candidate], epsilon_us: float, margin: float
) -> tuple[Candidate, ...]:
    """The candidates that can be part of a best placement: convex, and the best for their nodes and storages.

    One that costs more than another of the same nodes and storages is kept where it adds less error. Of equal
    candidates the one with less noise is kept, then the one with the first backend name. The order of the result does
    not depend on the order of ``candidates``. Raises ``UncoveredError`` with the nodes that none of them covers.
    """
    alike: dict[_Interface, list[Candidate]] = {}
    for candidate in candidates:
        alike.setdefault((candidate.nodes, candidate.reads, candidate.writes), []).append(candidate)
    reach = Reachability.of(graph)
    kept: list[Candidate] = []
    missing = dict.fromkeys(range(len(graph.nodes)))
    convex: dict[tuple[int, ...], bool] = {}
    for interface in sorted(alike):
        nodes = interface[0]
        _check_ids(graph, alike[interface][0])
        if nodes not in convex:
            convex[nodes] = len(nodes) == 1 or is_convex(graph, nodes, reach)
        if convex[nodes]:
            kept += _best(alike[interface], epsilon_us, margin)
            for node in nodes:
                missing.pop(node, None)
    if missing:
        raise UncoveredError(graph, tuple(missing))
    return tuple(kept)


def _best(alike: Sequence[Candidate], epsilon_us: float, margin: float) -> list[Candidate]:
    """The cheapest of the candidates, then each next one that adds less error than all before it."""

    def rank(candidate: Candidate) -> tuple[float, float, float, str]:
        charge = charge_us(candidate, epsilon_us, margin)
        return charge, candidate.error, candidate.noise_us, candidate.backend

    kept: list[Candidate] = []
    for candidate in sorted(alike, key=rank):
        if not kept or candidate.error < kept[-1].error:
            kept.append(candidate)
    return kept


def no_cover(graph: Graph, stuck_at: int | None = None) -> NoPlacementError:
    """The error for a graph in which each node has candidates, but which no combination of them covers."""
    where = "" if stuck_at is None else f"; none gets past {_name(graph, stuck_at)}"
    return NoPlacementError(
        "each node has candidates, but no combination of them covers each node exactly once "
        f"without waiting in a circle{where}",
        () if stuck_at is None else (stuck_at,),
    )


def _check_ids(graph: Graph, candidate: Candidate) -> None:
    if candidate.nodes[0] < 0 or candidate.nodes[-1] >= len(graph.nodes):
        raise ValueError(
            f"a {candidate.backend} candidate has nodes that the graph of {len(graph.nodes)} nodes does not have: "
            f"{candidate.nodes[0]} to {candidate.nodes[-1]}"
        )


def _name(graph: Graph, node: int) -> str:
    return f"node {node} ({graph.nodes[node].op})"


def _and_more(nodes: Sequence[int]) -> str:
    return f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
