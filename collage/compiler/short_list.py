"""The few plans that are compared when there is no time for all of them, or when a compile goes on afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from collage.backends.engine import as_engine, whole_variant
from collage.compiler.plan import COLLAGE, FLOAT32, Plan
from collage.compiler.plan_runs import Race
from collage.compiler.state import Compilation, Context
from collage.compiler.whole_plans import whole_plan
from collage.frontend.subgraph import Subgraph
from collage.measure.timing.effort import FULL
from collage.measure.timing.interleave import FEWEST, SURE
from collage.measure.worker.protocol import CandidateRequest
from collage.measure_db.results import Measurement
from collage.search.candidates import candidate_of

_FEW = 2
"""A list of so many plans has the placement and what was found last."""
EARLIER = "earlier"
"""The label of what was the best placement before more was known."""
SHORT = Race(replace(FULL, rounds=12, compare_s=3.0), FEWEST, SURE, noted=True, mark=" in short", shown=True)
"""A comparison of few plans."""


def short_list(context: Context, compilation: Compilation, plans: Sequence[Plan], most: int) -> list[Plan]:
    """The placement without streams, or the first one of the plans where it is among them; the last ones of them; the
    best engine. These are ``most`` and the engine.

    Where one of the plans is in float32 beside others of reduced precision, it takes the place of one of several last
    ones.
    Early plans of reduced precision are on the list, too.
    """
    ours = [plan for plan in plans if not plan.original]
    placement = compilation.placed.placement
    if all(plan.placement != placement or plan.streams for plan in ours):
        ours = [replace(each, label=EARLIER) if each.label == COLLAGE else each for each in ours]
        ours.insert(0, Plan(COLLAGE, placement, exclusive=len(placement.candidates) == 1))
    kept = ours[:1] if most <= _FEW else [ours[0], *(plan for plan in ours if plan.label == FLOAT32)]
    last = ours[len(kept) - most :] if len(kept) < most else []
    kept = list(dict.fromkeys([*kept, *last]))
    return _with_early(compilation, [*kept, *_fastest_engine(context, compilation, plans)])


def told_best(context: Context, compilation: Compilation) -> list[Plan]:
    """The early mix that the user was told of as the best one, and the engine that it was compared with.

    There are none where the user was told of something else.
    """
    best = context.course.best
    told = [plan for plan in compilation.early if not plan.original and best and plan.label == best[-1].label]
    return [*told, *_fastest_engine(context, compilation, compilation.early)] if told else []


def without_placement(context: Context, compilation: Compilation) -> list[Plan]:
    """The same where there is no placement."""
    return _with_early(compilation, _first(context, compilation))


def _fastest_engine(context: Context, compilation: Compilation, plans: Sequence[Plan]) -> list[Plan]:
    """The fastest engine of the plans, or the first module; none where there is none."""
    engines = [plan for plan in plans if plan.original] or _first(context, compilation)
    return sorted(engines, key=lambda plan: plan.placement.predicted_us)[:1]


def _with_early(compilation: Compilation, plans: Sequence[Plan]) -> list[Plan]:
    labels = {plan.label for plan in plans}
    return [*plans, *(plan for plan in compilation.early if plan.label not in labels)]


def _first(context: Context, compilation: Compilation) -> list[Plan]:
    """The first module as a plan, with the time that its trial has shown."""
    first, measurer = compilation.first, context.workbench(compilation).measurer
    graph = compilation.imported.graph
    if first is None or first.timing is None or measurer.original is None or not graph.nodes:
        return []
    timing = first.timing
    everything = tuple(range(len(graph.nodes)))
    whole = Subgraph(compilation.imported, everything)
    variant = whole_variant(as_engine(context.backends[first.engine]), whole)
    request = CandidateRequest(everything, first.engine, variant, original=True)
    outcome = Measurement(
        timing.median_us,
        timing.noise_us,
        timing.min_us,
        timing.repeats,
        first.trial.errors[first.engine][1],
        finite_only=first.engine in first.trial.finite_only,
    )
    plan = whole_plan(context, compilation, candidate_of(compilation.imported, request, outcome))
    return [] if plan is None else [plan]
