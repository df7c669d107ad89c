"""Placing by what is known by now: the candidates of outcomes, costs of their layout transforms, and a search."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from collage.compiler.cheapest import NOISE_MARGIN, cheapest
from collage.compiler.events import Searched
from collage.compiler.proposal import Proposal
from collage.compiler.state import Compilation, Context
from collage.kernel.transform import LayoutTransform
from collage.measure.measurer import Measurer
from collage.measure.worker.protocol import CandidateRequest
from collage.measure_db.results import Outcome
from collage.search.candidate import Candidate
from collage.search.candidates import candidates_of, possible_transforms
from collage.search.dp_budget import least_within
from collage.search.transforms import ValueTransform


def candidates_in(
    context: Context, compilation: Compilation, outcomes: Mapping[CandidateRequest, Outcome]
) -> list[Candidate]:
    """The candidates that the search chooses from; without an error budget there are none of reduced precision."""
    errors = None if compilation.budget is None else compilation.budget.model
    return candidates_of(
        compilation.imported, compilation.offers, compilation.views, outcomes, context.without_switch, errors
    )


def expected(compilation: Compilation) -> dict[CandidateRequest, Outcome]:
    """The outcomes, with the times that are expected in the network."""
    corrections, count = compilation.calibration.corrections, len(compilation.imported.graph.nodes)
    return corrections.expected(compilation.outcomes, count)


def transform_costs_us(
    measurer: Measurer,
    compilation: Compilation,
    candidates: Sequence[Candidate],
    costs_of: Callable[[Collection[LayoutTransform]], Mapping[LayoutTransform, float]],
) -> dict[ValueTransform, float]:
    """Costs in microseconds of the layout transforms that a placement may need, as far as ``costs_of`` has them.

    A transform that does not run on the team pays for a switch. The costs are those that are expected in the network.
    """
    possible = possible_transforms(measurer.model, candidates)
    costs = costs_of(dict.fromkeys(transform for _, transform in possible))
    makers = {each: measurer.transform_backend(each) for each in costs}
    switch_us = {
        each: 0.0 if maker is None or not maker.pays_switch() else compilation.epsilon_us
        for each, maker in makers.items()
    }
    alone_us = {(value, each): costs[each] + switch_us[each] for value, each in possible if each in costs}
    return compilation.calibration.corrections.expected_transforms(alone_us)


def placed_by_known(context: Context, compilation: Compilation) -> Compilation:
    """The compilation with a placement of what is known, in the database or in its outcomes. Nothing is measured.

    Without outcomes of the pass that measures, the cost of a switch is that of a launch. Raises NoPlacementError.
    """
    measurer = context.workbench(compilation).measurer
    asked = [offer.request for offer in compilation.offers]
    outcomes = {**compilation.outcomes, **measurer.known(asked)}
    epsilon_us = compilation.epsilon_us if compilation.outcomes else measurer.epsilon_us(())
    known = replace(compilation, outcomes=outcomes, epsilon_us=epsilon_us)
    candidates, usable = _candidates(context, known)
    transforms_us = transform_costs_us(measurer, known, usable, measurer.known_transforms)
    started = time.perf_counter()
    placement = cheapest(context, known, usable, transforms_us)
    corrections = compilation.calibration.corrections
    proposal = Proposal(placement, placement, tuple(candidates), transforms_us, corrections)
    return replace(known, proposal=proposal).told(Searched(time.perf_counter() - started))


def least_by_known(context: Context, compilation: Compilation) -> float:
    """A bound in microseconds: no placement of the outcomes that keeps the budget of ``errors`` is charged less.

    Layout transforms that are not known are measured. Raises NoPlacementError.
    """
    assert compilation.errors is not None
    known = replace(compilation, budget=compilation.errors)
    measurer = context.workbench(compilation).measurer
    _, usable = _candidates(context, known)
    return least_within(
        known.imported.graph,
        usable,
        known.epsilon_us,
        compilation.errors.of_candidates,
        margin=NOISE_MARGIN,
        transforms_us=transform_costs_us(measurer, known, usable, measurer.measure_transforms),
        check=context.course.deadline.check,
    )


def _candidates(context: Context, compilation: Compilation) -> tuple[list[Candidate], list[Candidate]]:
    """All candidates, and those that a placement may use, with the times that are expected in the network."""
    candidates = candidates_in(context, compilation, expected(compilation))
    return candidates, [c for c in candidates if c.backend not in compilation.left_out and not c.outrun]
