"""Launches side by side: which of a mix's kernels are better off on one thread each, next to others.

The mix is placed for launches one after another, each on the whole team. Here each is measured on a single thread,
too, and those that do not depend on each other are scheduled side by side where that is shorter, by several algorithms
(`collage.schedule`). What they propose, and the costs do not rule out, runs once with each launch timed in its place;
the best is scheduled again with these times, and the last round decides whether it is used.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from collage.backends.base import Backend
from collage.compiler.assemble import Apart, Assembler, Rival, on_one_thread
from collage.compiler.finalist import Finalist
from collage.compiler.in_network import InNetwork
from collage.compiler.plan_runs import PlanDroppedError
from collage.frontend.model import Model
from collage.frontend.subgraph import Subgraph
from collage.graph.storage import Storage
from collage.kernel.options import BuildOptions
from collage.kernel.transform import LayoutTransform
from collage.measure_db.measurer import Measurer
from collage.measure_db.protocol import Request
from collage.patterns.match import Match
from collage.report.report import CandidateReport
from collage.schedule.dag import Dag
from collage.schedule.fold import nimble, opara
from collage.schedule.list_schedule import list_schedule
from collage.schedule.schedule import TEAM, Schedule, makespan_us
from collage.schedule.side_by_side import schedule_side_by_side
from collage.schedule.timeline import Algorithm, Costs, Found
from collage.search.candidate import Candidate
from collage.search.candidates import collect, offers_of, ports_of
from collage.search.placement import Placement
from collage.search.transforms import PlacedTransform

log = logging.getLogger(__name__)

LABEL = "side by side"

Launch: TypeAlias = "Candidate | PlacedTransform"
_Layouts: TypeAlias = "tuple[tuple[int, Storage], ...]"
_Work: TypeAlias = "tuple[tuple[int, ...], _Layouts, _Layouts]"

_ROUNDS = 3
_LEAST_GAIN = 0.03
"""Of the time on the whole team; what promises less is lost in the noise."""
_CLOSE = 1.1
"""Times the shortest by the costs, which are as much off in the network: what promises more is not run."""
_MEETING_US = 0.5
_EVENT_US = 0.2


@dataclass
class Streams:
    """Schedules one mix. ``alone`` measures for a single thread; ``matches`` are what its backends may run."""

    assembler: Assembler
    network: InNetwork
    backends: Mapping[str, Backend]
    matches: Sequence[Match]
    alone: Measurer
    tunings: Mapping[Request, str]
    exact: bool = False
    reports: list[CandidateReport] = field(default_factory=list)
    """Of what was measured on one thread."""

    def rival(self, mix: Placement, threads: int) -> Rival | None:
        """The best schedule found with launches side by side, or None where nothing is gained by the costs.

        Raises KernelRejectedError.
        """
        base = self.assembler.assemble(Rival("mix", mix, exclusive=False), self.tunings)
        dag = base.program.ordered.dag
        if threads < 2 or dag.width < 2:
            return None
        single = self._on_one_thread(base.launches)
        team_us = [_team_us(each, self.network.epsilon_us) for each in base.launches]
        alone_us: list[float | None] = [None if each is None else each.cost_us for each in single]
        moved = [_moved_bytes(self.assembler.model, base, v) for v in range(len(dag))]
        best: Rival | None = None
        tried: set[Schedule] = set()
        for number in range(_ROUNDS):
            costs = Costs(tuple(team_us), tuple(alone_us), _MEETING_US, _EVENT_US)
            proposals = _proposals(dag, costs, threads, moved)[: None if number == 0 else 1]
            new = [(name, found) for name, found in proposals if found.schedule not in tried]
            if not new:
                break
            for name, found in new:
                schedule = found.schedule
                tried.add(schedule)
                rival = Rival(LABEL, mix, exclusive=False, apart=Apart(schedule, tuple(single), name))
                finalist = self.assembler.assemble(rival, self.tunings)
                try:
                    times = dict(zip(schedule.order, self.network.times(finalist), strict=True))
                except PlanDroppedError as dropped:
                    log.info("%s: %s", name, dropped)
                    continue
                for v, us in times.items():
                    if schedule.streams[v] == TEAM:
                        team_us[v] = us
                    else:
                        alone_us[v] = us
                total_us = makespan_us(dag, schedule, [times[v] for v in range(len(dag))])
                log.info("%s: %.1f us by the costs, %.1f us when run", name, found.time_us, total_us)
                if best is None or total_us < best.placement.predicted_us:
                    placed = _placed(mix, base.launches, schedule, single, times, total_us)
                    best = replace(rival, placement=placed)
        return best

    def _on_one_thread(self, launches: Sequence[Launch]) -> list[Launch | None]:
        """The same work in the same layouts on one thread, as fast as any backend does it; None for engines."""
        model = self.alone.model
        nodes = {each.nodes for each in launches if isinstance(each, Candidate)}
        on_team = {name for name, backend in self.backends.items() if backend.on_team()}
        matches = [m for m in self.matches if m.nodes in nodes and m.backend in on_team]
        wanted = {_work(each) for each in launches if isinstance(each, Candidate)}
        offers, _ = offers_of(model, matches, self.backends, BuildOptions(threads=1, exact=self.exact))
        offers = [o for o in offers if (o.request.nodes, *ports_of(model, o.request)) in wanted]
        outcomes = self.alone.measure([offer.request for offer in offers])
        fastest: dict[_Work, Candidate] = {}
        measured = collect(model, offers, (), outcomes, (), on_team)
        self.reports = [replace(each, split=on_one_thread(each.split)) for each in measured.reports]
        for candidate in measured.candidates:
            known = fastest.get(_work(candidate))
            if known is None or candidate.cost_us < known.cost_us:
                fastest[_work(candidate)] = candidate
        transforms = {each.transform: None for each in launches if isinstance(each, PlacedTransform)}
        costs = self.alone.measure_transforms([each for each in transforms if self._runs_on_team(each)])
        found: list[Launch | None] = []
        for each in launches:
            if isinstance(each, Candidate):
                found.append(fastest.get(_work(each)))
            else:
                cost = costs.get(each.transform)
                found.append(None if cost is None else replace(each, cost_us=cost))
        return found

    def _runs_on_team(self, transform: LayoutTransform) -> bool:
        maker = self.alone.transform_backend(transform)
        return maker is not None and maker.on_team()


def _proposals(dag: Dag, costs: Costs, threads: int, moved_bytes: Sequence[int]) -> list[tuple[str, Found]]:
    """By algorithm, the shortest by the costs first; without those that promise too little to be run."""
    algorithms: dict[str, Algorithm] = {
        "list": list_schedule,
        "nimble": nimble(dag, costs),
        "opara": opara(dag, costs, moved_bytes),
    }
    found = {name: schedule_side_by_side(dag, costs, threads, each) for name, each in algorithms.items()}
    ranked = sorted(found.items(), key=lambda item: item[1].time_us)
    limit = min((1 - _LEAST_GAIN) * sum(costs.team_us), _CLOSE * ranked[0][1].time_us)
    return [(name, each) for name, each in ranked if each.time_us <= limit]


def _moved_bytes(model: Model, finalist: Finalist, v: int) -> int:
    """What a launch reads and writes: activations and weights."""
    region, types = finalist.program.launches[v], finalist.program.types
    weights = Subgraph(model, region.nodes).weights.values()
    return sum(types[each].nbytes for each in (*region.inputs, *region.outputs)) + sum(
        w.nbytes for w in weights
    )


def _work(candidate: Candidate) -> _Work:
    return candidate.nodes, candidate.reads, candidate.writes


def _team_us(launch: Launch, epsilon_us: float) -> float:
    return launch.cost_us + (epsilon_us * launch.switches if isinstance(launch, Candidate) else 0.0)


def _placed(
    mix: Placement,
    launches: Sequence[Launch],
    schedule: Schedule,
    single: Sequence[Launch | None],
    times: Mapping[int, float],
    total_us: float,
) -> Placement:
    """The mix as it is scheduled, with the times of its launches; it ends after ``total_us``."""
    candidates: dict[Candidate, Candidate] = {}
    transforms: dict[PlacedTransform, PlacedTransform] = {}
    for v, launch in enumerate(launches):
        alone = single[v] if schedule.streams[v] != TEAM else launch
        if isinstance(launch, Candidate) and isinstance(alone, Candidate):
            candidates[launch] = replace(alone, cost_us=times[v])
        elif isinstance(launch, PlacedTransform) and isinstance(alone, PlacedTransform):
            transforms[launch] = replace(alone, cost_us=times[v])
    return replace(
        mix,
        candidates=tuple(candidates.get(each, each) for each in mix.candidates),
        transforms=tuple(transforms.get(each, each) for each in mix.transforms),
        predicted_us=total_us,
    )
