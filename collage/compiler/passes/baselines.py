"""Baselines: each engine on the model as its author wrote it, with the few settings that matter. Never slower.

What an engine gets from Collage is the simplified model written out again, with one set of settings. Its users may have
better: another form that its own fusions like more, or a setting that suits the model. So the original is a candidate
too, measured in the worker with each of the engine's profiles. The best of each engine runs in the last comparison, and
so do the usual settings: they are what a user of the engine would compare with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from collage.backends.engine import Engine
from collage.compiler.events import Considered
from collage.compiler.plan import Plan
from collage.compiler.state import Compilation, Context
from collage.frontend.subgraph import Subgraph
from collage.kernel.options import ALL_PLAIN
from collage.measure_db.protocol import Request
from collage.measure_db.results import Measurement, Outcome
from collage.report.words import as_written
from collage.search.candidate import Candidate
from collage.search.candidates import candidate_of, with_floor
from collage.search.placement import finish

USUAL = ""
"""The profile that an engine's users have without asking."""

_DOUBT = 1.05
"""Fresh processes differ by 2-5 %: who is slower by more than that, and the noise, is slower."""


@dataclass(frozen=True)
class Baselines:
    """Measures each engine that takes whole models on the original, where that fits the graph."""

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Adds plans of originals, and drops those of engines whose form from Collage is slower."""
        graph = compilation.imported.graph
        everything = tuple(range(len(graph.nodes)))
        if not everything or context.workbench(compilation).measurer.original is None:
            return compilation
        outcomes = self._outcomes(context, compilation, everything)
        measured: dict[str, dict[str, Candidate]] = {}
        for request, outcome in outcomes.items():
            if isinstance(outcome, Measurement):
                found = candidate_of(compilation.imported, request, outcome)
                measured.setdefault(request.backend, {})[request.profile] = found
        plans: list[Plan] = []
        beaten: set[str] = set()
        for name, profiles in measured.items():
            best = best_profile(profiles)
            candidates = compilation.placed.candidates
            ours = [c for c in candidates if c.backend == name and c.nodes == everything]
            if any(_slower(profiles[best], c) for c in ours):
                continue
            if ours and all(_slower(c, profiles[best]) for c in ours):
                beaten.add(name)
            for profile in dict.fromkeys((best, USUAL if USUAL in profiles else best)):
                placement = finish(graph, [profiles[profile]], compilation.epsilon_us)
                label = f"{name}, {as_written(profile)}"
                plans.append(Plan(label, placement, exclusive=True, original=True, profile=profile))
        kept = (plan for plan in compilation.plans if plan.label not in beaten)
        return replace(compilation, plans=(*kept, *plans)).told(
            *(Considered(request, "whole model", _floored(each)) for request, each in outcomes.items())
        )

    def _outcomes(
        self, context: Context, compilation: Compilation, everything: tuple[int, ...]
    ) -> dict[Request, Outcome]:
        build = context.build
        whole = Subgraph(compilation.imported, everything)
        requests = [
            Request(everything, name, original=True, profile=profile)
            for name, backend in context.backends.items()
            if isinstance(backend, Engine) and not (build.exact and backend.reassociates(whole, ALL_PLAIN))
            for profile in backend.profiles(build)
        ]
        return context.workbench(compilation).measurer.measure(requests)


def best_profile(profiles: Mapping[str, Candidate]) -> str:
    """The fastest one; the usual settings where they are not slower beyond doubt."""
    best = min(profiles, key=lambda profile: profiles[profile].cost_us)
    return USUAL if USUAL in profiles and not _slower(profiles[USUAL], profiles[best]) else best


def _slower(one: Candidate, other: Candidate) -> bool:
    return one.cost_us - one.noise_us > _DOUBT * (other.cost_us + other.noise_us)


def _floored(outcome: Outcome) -> Outcome:
    return with_floor(outcome) if isinstance(outcome, Measurement) else outcome
