"""Placing: the fastest cover of the graph by what is known."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from collage.backends.base import BUILT_IN
from collage.compiler.bench import Bench
from collage.errors import NoPlacementError
from collage.measure_db.results import Rejection, Slower
from collage.search.candidate import Candidate
from collage.search.candidates import candidates_of, possible_transforms
from collage.search.dp import place as placed
from collage.search.dp_budget import least_within, place_within
from collage.search.errors import ErrorBudget
from collage.search.placement import Placement, UncoveredError
from collage.search.transforms import ValueTransform

NOISE_MARGIN = 1.0
"""The number of half-widths of its confidence interval that a candidate is charged, so that noise decides nothing."""
_NAMED = 5
"""The most nodes, and the most reasons, that an error message names. It counts the other nodes."""


@dataclass(frozen=True)
class Field:
    """The candidates of a search, with the times that are expected in the network, and the costs of conversions."""

    candidates: tuple[Candidate, ...]
    transforms_us: dict[ValueTransform, float]


def field_of(bench: Bench, budget: ErrorBudget | None = None) -> Field:
    """What the search can choose from, as in ``usable``. Conversions that are not known are measured."""
    found = usable(bench, budget)
    return Field(tuple(found), transform_costs_us(bench, found))


def usable(bench: Bench, budget: ErrorBudget | None = None) -> list[Candidate]:
    """The candidates of a search; kernels of reduced precision only with a budget."""
    task, known = bench.task, bench.known
    outcomes = known.costs.expected(known.outcomes)
    errors = None if budget is None else budget.model
    candidates = candidates_of(bench.model, known.offers, known.views, outcomes, task.without_switch, errors)
    left_out = known.left_out
    return [c for c in candidates if c.backend not in left_out and not c.outrun]


def transform_costs_us(bench: Bench, candidates: Sequence[Candidate]) -> dict[ValueTransform, float]:
    """Costs in microseconds of the layout transforms that a placement may need, as expected in the network.

    A transform that does not run on the team pays for a switch.
    """
    measurer, known = bench.measurer, bench.known
    possible = possible_transforms(measurer.model, candidates)
    costs = measurer.measure_transforms(dict.fromkeys(transform for _, transform in possible))
    makers = {each: measurer.transform_backend(each) for each in costs}
    switch_us = {
        each: 0.0 if maker is None or not maker.pays_switch() else known.epsilon_us for each, maker in makers.items()
    }
    alone_us = {(value, each): costs[each] + switch_us[each] for value, each in possible if each in costs}
    known.transforms_us.update(alone_us)
    return known.costs.expected_transforms(alone_us)


def place(bench: Bench, budget: ErrorBudget | None = None, *, field: Field | None = None) -> Placement:
    """The cheapest placement of what is known, within the error budget if there is one.

    Raises NoPlacementError, and BudgetOverError if the compile has to end.
    """
    found = field or field_of(bench, budget)
    graph, known, check = bench.model.graph, bench.known, bench.clock.deadline.check
    started = time.perf_counter()
    try:
        about = graph, found.candidates, known.epsilon_us
        costs, margin = found.transforms_us, NOISE_MARGIN
        if budget is None:
            placement = placed(*about, margin=margin, transforms_us=costs, check=check)
        else:
            kept = budget.of_candidates
            placement = place_within(*about, kept, margin=margin, transforms_us=costs, check=check)
        known.no_placement = None
        return placement
    except UncoveredError as error:
        if field is None and _finish_lost(bench, error.nodes):
            return place(bench, budget)
        raise NoPlacementError(why_uncovered(bench, error.nodes), error.nodes) from error
    except NoPlacementError as error:
        if memory := known.lack_of_memory():
            text = f"{error}, and a kernel had too little memory ({memory})."
            raise NoPlacementError(text, error.nodes) from error
        raise
    finally:
        known.search_s += time.perf_counter() - started


def _finish_lost(bench: Bench, nodes: Sequence[int]) -> bool:
    """Measure kernels of these nodes to the end that have lost a race. False if there are none."""
    known = bench.known
    left_out = known.left_out
    lost = [
        request
        for request, outcome in known.outcomes.items()
        if isinstance(outcome, Slower)
        and request.backend not in left_out
        and not (request.variant.precision or {*nodes}.isdisjoint(request.nodes))
    ]
    bench.finish_races(lost)
    return any(not isinstance(known.outcomes[request], Slower) for request in lost)


def least_us(bench: Bench, budget: ErrorBudget) -> float:
    """A bound in microseconds: no placement that keeps the budget is charged less. Raises NoPlacementError."""
    found = field_of(bench, budget)
    return least_within(
        bench.model.graph,
        found.candidates,
        bench.known.epsilon_us,
        budget.of_candidates,
        margin=NOISE_MARGIN,
        transforms_us=found.transforms_us,
        check=bench.clock.deadline.check,
    )


def why_uncovered(bench: Bench, nodes: Sequence[int]) -> str:
    """The ONNX nodes that no kernel of the backends runs, why those that were tried do not, and other backends."""
    task = bench.task
    named = ", ".join(map(bench.model.describe_node, nodes[:_NAMED]))
    more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
    asked = [name for name in task.backends if name not in BUILT_IN]
    others = [name for name, here in task.registry.availability().items() if here and name not in asked]
    wider = f" Allow more backends, such as {', '.join(others)}." if others else ""
    tried = {
        f"{request.backend}: {outcome.message}": None
        for request, outcome in bench.known.outcomes.items()
        if isinstance(outcome, Rejection) and not {*nodes}.isdisjoint(request.nodes)
    }
    why = f" ({'; '.join([*tried][:_NAMED])})" if tried else ""
    return f"no kernel of {', '.join(asked)} can run {named}{more}{why}.{wider}"


def uncovered(bench: Bench) -> Collection[int]:
    """The nodes that no offer and no view covers."""
    regions = [offer.request.nodes for offer in bench.known.offers]
    covered = set().union(*regions, *(view.nodes for view in bench.known.views))
    return [node for node in range(len(bench.model.graph.nodes)) if node not in covered]
