"""Never slower: each engine on the model as its author wrote it, with the few settings that matter.

What an engine gets from Collage is the simplified model written out again, with one set of settings. Its users may have
better: another form that its own fusions like more, or a setting that suits the model. So the original is a candidate
too, measured in the worker with each of the engine's profiles. The best of each engine runs in the last comparison, and
so do the usual settings: they are what a user of the engine would compare with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from collage.backends.base import Backend
from collage.compiler.assemble import Rival, as_written
from collage.frontend.subgraph import Subgraph
from collage.kernel.options import ALL_PLAIN, BuildOptions
from collage.measure_db.measurer import Measurer
from collage.measure_db.protocol import Request
from collage.measure_db.results import Measurement
from collage.report.report import CandidateReport
from collage.search.candidate import Candidate
from collage.search.candidates import NOISE_FLOOR
from collage.search.placement import finish

USUAL = ""
"""The profile that an engine's users have without asking."""

_DOUBT = 1.05
"""Fresh processes differ by 2-5 %: who is slower by more than that, and the noise, is slower."""


@dataclass(frozen=True)
class Originals:
    """The engines' best with the original, as rivals; ``beaten`` are engines whose form from Collage is slower."""

    rivals: tuple[Rival, ...]
    beaten: frozenset[str]
    reports: tuple[CandidateReport, ...]


def measure_originals(
    measurer: Measurer,
    backends: Mapping[str, Backend],
    build: BuildOptions,
    epsilon_us: float,
    candidates: Sequence[Candidate],
) -> Originals:
    """Measure each engine that takes whole models.

    ``candidates`` are all that were measured before; among them is the graph on each engine as Collage writes it.
    """
    graph = measurer.model.graph
    everything = tuple(range(len(graph.nodes)))
    if not everything or measurer.original is None:
        return Originals((), frozenset(), ())
    whole = Subgraph(measurer.model, everything)
    names = [
        name
        for name, backend in backends.items()
        if backend.takes_models() and not (build.exact and backend.reassociates(whole, ALL_PLAIN))
    ]
    requests = [
        Request(everything, name, original=True, profile=profile)
        for name in names
        for profile in backends[name].profiles(build)
    ]
    outcomes = measurer.measure(requests)
    reports: list[CandidateReport] = []
    measured: dict[str, dict[str, Candidate]] = {}
    for request in requests:
        outcome, name = outcomes[request], request.backend
        about = CandidateReport(everything, name, "whole model", split=as_written(request.profile))
        if isinstance(outcome, Measurement):
            noise_us = max(outcome.noise_us, NOISE_FLOOR * outcome.median_us)
            found = Candidate(everything, name, outcome.median_us, noise_us, finite_only=outcome.finite_only)
            measured.setdefault(name, {})[request.profile] = found
            about = replace(about, cost_us=found.cost_us, noise_us=found.noise_us)
            reports.append(replace(about, finite_only=found.finite_only))
        else:
            reports.append(replace(about, reason=f"{outcome.kind.value}: {outcome.message}"))
    rivals: list[Rival] = []
    beaten: set[str] = set()
    for name, profiles in measured.items():
        best = best_profile(profiles)
        ours = [c for c in candidates if c.backend == name and c.nodes == everything]
        if any(_slower(profiles[best], c) for c in ours):
            continue
        if ours and all(_slower(c, profiles[best]) for c in ours):
            beaten.add(name)
        for profile in dict.fromkeys((best, USUAL if USUAL in profiles else best)):
            placement = finish(graph, [profiles[profile]], epsilon_us)
            label = f"{name}, {as_written(profile)}"
            rivals.append(Rival(label, placement, exclusive=True, original=True, profile=profile))
    return Originals(tuple(rivals), frozenset(beaten), tuple(reports))


def best_profile(profiles: Mapping[str, Candidate]) -> str:
    """The fastest one; the usual settings where they are not slower beyond doubt."""
    best = min(profiles, key=lambda profile: profiles[profile].cost_us)
    return USUAL if USUAL in profiles and not _slower(profiles[USUAL], profiles[best]) else best


def _slower(one: Candidate, other: Candidate) -> bool:
    return one.cost_us - one.noise_us > _DOUBT * (other.cost_us + other.noise_us)
