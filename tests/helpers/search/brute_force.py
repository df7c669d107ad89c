"""The cheapest cover of a small graph with layout transforms and errors, by trying all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from collage.graph.convexity import CyclicPlacementError, quotient_order
from collage.graph.dataflow import Graph
from collage.search.candidate import Candidate
from collage.search.transforms import ValueTransform, needed_transforms

EPSILON = 0.5
Case = tuple[Graph, list[Candidate], dict[ValueTransform, float]]


def least_cost(case: Case, margin: float = 0.0, budget: float = math.inf) -> Fraction | None:
    """The least sum of charges and layout transforms of all covers within the budget."""
    graph, candidates, costs = case
    best: Fraction | None = None

    def extend(chosen: Sequence[Candidate], covered: frozenset[int]) -> None:
        nonlocal best
        node = next((n for n in range(len(graph.nodes)) if n not in covered), None)
        if node is None:
            if sum(c.error for c in chosen) > budget:
                return
            try:
                quotient_order(graph, [c.nodes for c in chosen])
                total = sum((Fraction(costs[each]) for each in needed_transforms(graph, chosen)), Fraction(0))
            except (CyclicPlacementError, KeyError):
                return
            for c in chosen:
                total += Fraction(c.cost_us) + Fraction(EPSILON) + Fraction(margin) * Fraction(c.noise_us)
            best = total if best is None else min(best, total)
            return
        for candidate in candidates:
            if candidate.nodes[0] == node and covered.isdisjoint(candidate.nodes):
                extend([*chosen, candidate], covered | set(candidate.nodes))

    extend([], frozenset())
    return best


def edges(graph: Graph, candidate: Candidate) -> tuple[list[int], list[int]]:
    """The values that a candidate reads from outside, without constants, and those that it makes for others."""
    inside = set(candidate.nodes)
    nodes = [graph.nodes[n] for n in candidate.nodes]
    taken = {v for n in nodes for v in n.inputs if graph.values[v].producer not in inside}
    made = [v for n in nodes for v in n.outputs]
    escaping = [v for v in made if v in graph.output_set or any(u not in inside for u in graph.users[v])]
    return sorted(v for v in taken if not graph.is_constant(v)), escaping
