"""Plans: placements, with every decision that is needed before they can be run against each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collage.backends.base import Backend, BackendKind
from collage.compiler.proposal import Proposal
from collage.graph.dataflow import Graph
from collage.schedule.schedule import Schedule
from collage.search.candidate import Candidate
from collage.search.placement import Placement, finish
from collage.search.transforms import PlacedTransform

SEQUENTIAL = "sequential"
COLLAGE, QUICK = "collage", "quick"
"""The labels of the best placement, and of the one of a quick compile."""
FLOAT32 = "float32"
"""The label of the fastest plan in the model's own dtypes, beside plans of reduced precision."""


@dataclass(frozen=True)
class StreamPlan:
    """A schedule that runs launches of a placement concurrently, and the single-threaded kernel for each of them.

    Launches on a GPU have no such kernel, and stay what they are. ``algorithm`` names the scheduling algorithm.
    """

    schedule: Schedule
    single_threaded: tuple[Candidate | PlacedTransform | None, ...]
    algorithm: str


@dataclass(frozen=True)
class Plan:
    """A placement for the last comparison. ``exclusive`` lets its engine's idle threads spin.

    ``streams`` schedules its launches concurrently. A plan that is ``original`` is a baseline: its one engine runs the
    model as its author wrote it, with ``profile``.
    """

    label: str
    placement: Placement
    exclusive: bool
    streams: StreamPlan | None = None
    original: bool = False
    profile: str = ""

    @property
    def algorithm(self) -> str:
        """The name of the scheduling algorithm."""
        return SEQUENTIAL if self.streams is None else self.streams.algorithm


def plans_of(
    graph: Graph,
    proposal: Proposal,
    close: Sequence[Placement],
    epsilon_us: float,
    backends: Mapping[str, Backend],
) -> list[Plan]:
    """Plans of the best placement, the best mix, the mixes ``close`` to it, and each engine on the whole model.

    The additive model (Eq. 2.2) knows neither what neighbours do to each other nor what an engine gains from having
    the cores to itself. So placements that are close by that model are run against each other.
    """
    everything = tuple(range(len(graph.nodes)))
    placements = {COLLAGE: proposal.placement}
    if proposal.mix is not None and proposal.mix is not proposal.placement:
        placements["mix"] = proposal.mix
    for candidate in sorted(proposal.candidates, key=lambda c: c.cost_us):
        plain = not (candidate.reads or candidate.writes)  # the model's inputs and outputs are plain
        whole = candidate.nodes == everything and not candidate.outrun
        if whole and plain and proposal.placement.candidates != (candidate,):
            label = form_label(candidate.backend, candidate.variant.precision)
            placements.setdefault(label, finish(graph, [candidate], epsilon_us))
    plans = [plan for label, each in placements.items() for plan in variants_of(label, each, backends)]
    return plans + [Plan(f"mix {n}", mix, exclusive=False) for n, mix in enumerate(close, start=2)]


def form_label(engine: str, precision: str) -> str:
    """The label of the plan that runs an engine on the whole model, in the form that it gets from Collage."""
    return f"{engine} {precision}" if precision else engine


def variants_of(label: str, placement: Placement, backends: Mapping[str, Backend]) -> list[Plan]:
    """The placement as a plan, and as a second one with its engine's idle threads spinning where that disturbs nobody.

    It would disturb another engine, and the team of threads.
    """
    alone = len(placement.candidates) == 1
    plans = [Plan(label, placement, exclusive=alone)]
    engines = {c.backend for c in placement.candidates if backends[c.backend].kind is BackendKind.ENGINE}
    on_team = any(backends[c.backend].on_team() for c in placement.candidates)
    if not alone and len(engines) == 1 and not on_team:
        plans.append(Plan(f"{label}, spinning", placement, exclusive=True))
    return plans
