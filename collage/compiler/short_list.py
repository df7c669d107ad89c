"""The few plans that are compared when there is no time for all of them, or when a compile goes on afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from collage.compiler.plan import Plan
from collage.compiler.plan_runs import Race
from collage.compiler.state import Compilation, Context
from collage.measure_db.effort import FULL
from collage.measure_db.interleave import FEWEST, SURE
from collage.measure_db.protocol import Request
from collage.measure_db.results import Measurement
from collage.report.words import as_written
from collage.search.candidates import candidate_of
from collage.search.placement import finish

SHORT = Race(replace(FULL, rounds=12, compare_s=3.0), FEWEST, SURE, noted=True, mark=" in short", shown=True)
"""A comparison of few plans."""


def short_list(context: Context, compilation: Compilation, plans: Sequence[Plan], most: int) -> list[Plan]:
    """The placement, or the first one of the plans where it is among them; the last ones of them; the best engine."""
    ours = [plan for plan in plans if not plan.original]
    placement = compilation.placed.placement
    if all(plan.placement != placement for plan in ours):
        ours.insert(0, Plan("collage", placement, exclusive=len(placement.candidates) == 1))
    kept = list(dict.fromkeys((ours[0], *ours[1 - most :]))) if most > 1 else ours[:1]
    engines = [plan for plan in plans if plan.original] or _first(context, compilation)
    return kept + sorted(engines, key=lambda plan: plan.placement.predicted_us)[:1]


def _first(context: Context, compilation: Compilation) -> list[Plan]:
    """The first module as a plan, with the time that its trial has shown."""
    first, measurer = compilation.first, context.workbench(compilation).measurer
    graph = compilation.imported.graph
    if first is None or first.timing is None or measurer.original is None or not graph.nodes:
        return []
    timing = first.timing
    request = Request(tuple(range(len(graph.nodes))), first.engine, original=True)
    outcome = Measurement(
        timing.median_us,
        timing.noise_us,
        timing.min_us,
        timing.repeats,
        first.trial.errors[first.engine][1],
        finite_only=first.engine in first.trial.finite_only,
    )
    candidate = candidate_of(compilation.imported, request, outcome)
    placement = finish(graph, [candidate], compilation.epsilon_us)
    return [Plan(f"{first.engine}, {as_written('')}", placement, exclusive=True, original=True)]
