"""Baselines: each engine on the model as its author wrote it, with the few settings that matter.

They are why the result is never slower than the best engine. What an engine gets from Collage is the simplified model,
written out again, with one set of settings. Without Collage an engine may be faster: its fusions may match the original
form better, or another setting may suit the model. So the original model is a candidate, too, and is measured in the
worker with each profile of the engine. The best profile of each engine runs in the last comparison, and so do its usual
settings, which a user of the engine would compare with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from collage.compiler.beyond import within_tolerance
from collage.compiler.events import Considered
from collage.compiler.plan import Plan, form_label
from collage.compiler.state import Compilation, Context
from collage.compiler.whole_plans import whole_plan, whole_requests
from collage.measure.rivals import Rivals
from collage.measure.worker.protocol import CandidateRequest
from collage.measure_db.results import Measurement, Outcome
from collage.search.candidate import Candidate
from collage.search.candidates import candidate_of, with_floor
from collage.search.errors import ErrorModel

USUAL = ""
"""The profile of an engine's default settings."""

_DOUBT = 1.05
"""One candidate is slower than another when it is slower by more than this factor and the noise. Times in two fresh
processes differ by 2 to 5 %."""


@dataclass(frozen=True)
class Baselines:
    """Measures each engine that takes whole models on the original, where that has the graph's inputs and outputs.

    Settings other than the usual ones race against all that is known to run the whole model. Of the plans that run an
    engine on the whole model, the fastest one is kept, the fastest baseline, and those that are slower than the best
    plan by a factor of ``far`` at most. In reduced precisions an engine is a baseline where its error is within the
    tolerance.
    """

    far: float = 1.15

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Adds plans of baselines, and drops plans of engines that are slower on the form from Collage."""
        everything = tuple(range(len(compilation.imported.graph.nodes)))
        if not everything or context.workbench(compilation).measurer.original is None:
            return compilation
        outcomes = self._outcomes(context, compilation, everything)
        errors = ErrorModel() if compilation.budget is None else compilation.budget.model
        measured: dict[tuple[str, str], dict[str, Candidate]] = {}
        for request, outcome in outcomes.items():
            if isinstance(outcome, Measurement):
                found = candidate_of(compilation.imported, request, outcome, errors=errors)
                about = request.backend, request.variant.precision
                measured.setdefault(about, {})[request.profile] = found
        plans: list[Plan] = []
        beaten: set[str] = set()
        for (name, precision), profiles in measured.items():
            best = best_profile(profiles)
            candidates = compilation.placed.candidates
            ours = [
                c
                for c in candidates
                if (c.backend, c.variant.precision, c.nodes) == (name, precision, everything)
                and not c.outrun  # its time is a bound, and no plan runs it
            ]
            if any(_slower(profiles[best], c) for c in ours):
                continue
            if ours and all(_slower(c, profiles[best]) for c in ours):
                beaten.add(form_label(name, precision))
            for profile in dict.fromkeys((best, USUAL if USUAL in profiles else best)):
                plan = whole_plan(context, compilation, profiles[profile], profile)
                plans += [] if plan is None else [plan]
        kept = [plan for plan in compilation.plans if plan.label not in beaten]
        allowed, notes = within_tolerance(context, compilation, [*kept, *plans])
        return replace(compilation, plans=tuple(self._near(allowed))).told(
            *notes,
            *(Considered(request, "whole model", _floored(each)) for request, each in outcomes.items()),
        )

    def _near(self, plans: Sequence[Plan]) -> list[Plan]:
        """The plans without engines on the whole model that are known to be far slower than others."""
        limit_us = self.far * min(map(_predicted_us, plans))
        whole = [plan for plan in plans if len(plan.placement.candidates) == 1]
        originals = [plan for plan in whole if plan.original]
        rivals = [min(those, key=_predicted_us) for those in (whole, originals) if those]
        return [
            plan for plan in plans if plan not in whole or plan in rivals or _predicted_us(plan) <= limit_us
        ]

    def _outcomes(
        self, context: Context, compilation: Compilation, everything: tuple[int, ...]
    ) -> dict[CandidateRequest, Outcome]:
        requests = whole_requests(context, compilation, context.build)
        measurer = context.workbench(compilation).measurer
        usual = measurer.measure([each for each in requests if each.profile == USUAL])
        times = {each: found.median_us for each, found in usual.items() if isinstance(found, Measurement)}
        best = {everything: (min(times, key=times.__getitem__),)} if times else {}
        others = measurer.race([each for each in requests if each.profile != USUAL], Rivals(best))
        return {**usual, **others}


def _predicted_us(plan: Plan) -> float:
    return plan.placement.predicted_us


def best_profile(profiles: Mapping[str, Candidate]) -> str:
    """The name of the fastest profile, or of the usual settings where these are not slower beyond doubt."""
    best = min(profiles, key=lambda profile: profiles[profile].cost_us)
    return USUAL if USUAL in profiles and not _slower(profiles[USUAL], profiles[best]) else best


def _slower(one: Candidate, other: Candidate) -> bool:
    return one.cost_us - one.noise_us > _DOUBT * (other.cost_us + other.noise_us)


def _floored(outcome: Outcome) -> Outcome:
    return with_floor(outcome) if isinstance(outcome, Measurement) else outcome
