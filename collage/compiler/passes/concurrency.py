"""Concurrency: which kernels of a mix take less time single-threaded, side by side with others.

The mix is placed for launches that run one after another, each on the whole team. Here each kernel is measured on a
single thread, too. Launches that do not depend on each other are scheduled side by side where that is shorter. Several
algorithms propose schedules (`collage.schedule`). Each proposal that the costs do not rule out runs once, with every
launch timed in its place. The best one is scheduled again with these times. The last comparison decides whether it is
used.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from collage.compiler.executable import Executable
from collage.compiler.plan import Plan, StreamPlan
from collage.compiler.plan_failures import PlanDroppedError
from collage.compiler.single_threaded import Launch, single_threaded
from collage.compiler.state import Compilation, Context
from collage.compiler.workbench import Workbench
from collage.frontend.model import Model
from collage.frontend.subgraph import Subgraph
from collage.measure.worker.protocol import CandidateRequest
from collage.schedule.dag import Dag
from collage.schedule.inter_op import schedule_inter_op
from collage.schedule.list_schedule import list_schedule
from collage.schedule.schedule import TEAM, Schedule, makespan_us
from collage.schedule.stream_mapping import nimble, opara
from collage.schedule.timeline import Algorithm, Costs, TimedSchedule
from collage.search.candidate import Candidate
from collage.search.placement import Placement
from collage.search.transforms import PlacedTransform

log = logging.getLogger(__name__)

LABEL = "concurrent"

_LEAST_GAIN = 0.03
"""The share of the time on the whole team that a schedule has to save. A smaller gain is lost in the noise."""
_CLOSE = 1.1
"""A factor on the shortest schedule by the costs: longer ones are not run. Costs are off by as much in the network."""
_EVENT = 0.4
"""The share of a barrier's time that a stream takes to wait for an event of another one."""


@dataclass(frozen=True)
class Concurrency:
    """Schedules the mix with concurrent launches where there is more than one thread, in at most ``rounds`` rounds.

    At most ``most_first`` proposals run in the first round, and one in each of the others. The plan takes the place of
    one that an earlier run of this pass has made, of an earlier mix.
    """

    rounds: int = 3
    most_first: int = 3

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Adds the plan of the best schedule, if the costs promise a gain. Raises KernelRejectedError."""
        mix = compilation.placed.mix
        if mix is None or context.target.threads < 2 or not context.options.streams:
            return compilation
        bench = context.workbench(compilation)
        base = bench.assembler.assemble(Plan("mix", mix, exclusive=False), compilation.tunings)
        if base.program.ordered.dag.width < 2:
            return compilation
        beside = {v for v in base.program.ordered.dag.beside_others if not base.program.on_gpu[v]}
        if not beside:
            return compilation
        single, considered = single_threaded(context, compilation, base.launches, beside)
        launches = _Launches(compilation.epsilon_us, mix, base, tuple(single))
        plan = self._best(bench, launches, compilation.tunings, context.speeds.barrier_us)
        if plan is None:
            return compilation.told(*considered)
        others = [each for each in compilation.plans if each.label != LABEL]
        return replace(compilation, plans=(*others, plan)).told(*considered)

    def _best(
        self,
        bench: Workbench,
        launches: _Launches,
        tunings: Mapping[CandidateRequest, str],
        barrier_us: float,
    ) -> Plan | None:
        """The plan of the schedule that took the least time when it was run, or None where none was run."""
        base, single = launches.base, launches.single_threaded
        dag, threads = base.program.ordered.dag, base.program.threads
        team_us = [_team_us(each, launches.epsilon_us) for each in base.launches]
        single_threaded_us: list[float | None] = [None if each is None else each.cost_us for each in single]
        moved = [_moved_bytes(bench.model, base, v) for v in range(len(dag))]
        best: Plan | None = None
        tried: set[Schedule] = set()
        for number in range(self.rounds):
            costs = Costs(tuple(team_us), tuple(single_threaded_us), barrier_us, _EVENT * barrier_us)
            proposals = _proposals(dag, costs, threads, moved)[: self.most_first if number == 0 else 1]
            new = [(name, found) for name, found in proposals if found.schedule not in tried]
            if not new:
                break
            for name, found in new:
                schedule = found.schedule
                tried.add(schedule)
                plan = Plan(LABEL, launches.mix, exclusive=False, streams=StreamPlan(schedule, single, name))
                executable = bench.assembler.assemble(plan, tunings)
                try:
                    took = bench.runs.launch_times_us(executable)
                except PlanDroppedError as dropped:
                    log.info("%s: %s", name, dropped)
                    continue
                times = dict(zip(schedule.order, took, strict=True))
                for v, us in times.items():
                    if schedule.streams[v] == TEAM:
                        team_us[v] = us
                    else:
                        single_threaded_us[v] = us
                total_us = makespan_us(dag, schedule, [times[v] for v in range(len(dag))])
                log.info("%s: %.1f us by the costs, %.1f us when run", name, found.time_us, total_us)
                if best is None or total_us < best.placement.predicted_us:
                    best = replace(plan, placement=launches.placed(schedule, times, total_us))
        return best


@dataclass(frozen=True)
class _Launches:
    """The launches of a mix on the whole team, and for each the single-threaded kernel that can take its place."""

    epsilon_us: float
    mix: Placement
    base: Executable
    single_threaded: tuple[Launch | None, ...]

    def placed(self, schedule: Schedule, times: Mapping[int, float], total_us: float) -> Placement:
        """The mix as it is scheduled, with the times of its launches. It ends after ``total_us`` microseconds."""
        candidates: dict[Candidate, Candidate] = {}
        transforms: dict[PlacedTransform, PlacedTransform] = {}
        for v, launch in enumerate(self.base.launches):
            alone = self.single_threaded[v] if schedule.streams[v] != TEAM else launch
            if isinstance(launch, Candidate) and isinstance(alone, Candidate):
                candidates[launch] = replace(alone, cost_us=times[v])
            elif isinstance(launch, PlacedTransform) and isinstance(alone, PlacedTransform):
                transforms[launch] = replace(alone, cost_us=times[v])
        return replace(
            self.mix,
            candidates=tuple(candidates.get(each, each) for each in self.mix.candidates),
            transforms=tuple(transforms.get(each, each) for each in self.mix.transforms),
            predicted_us=total_us,
        )


def _proposals(
    dag: Dag, costs: Costs, threads: int, moved_bytes: Sequence[int]
) -> list[tuple[str, TimedSchedule]]:
    """Schedules with the names of their algorithms, the shortest by the costs first.

    Those that promise too little to be run are left out.
    """
    algorithms: dict[str, Algorithm] = {
        "list": list_schedule,
        "nimble": nimble(dag, costs),
        "opara": opara(dag, costs, moved_bytes),
    }
    found = {name: schedule_inter_op(dag, costs, threads, each) for name, each in algorithms.items()}
    ranked = sorted(found.items(), key=lambda item: item[1].time_us)
    limit = min((1 - _LEAST_GAIN) * sum(costs.team_us), _CLOSE * ranked[0][1].time_us)
    return [(name, each) for name, each in ranked if each.time_us <= limit]


def _moved_bytes(model: Model, executable: Executable, v: int) -> int:
    """The bytes of activations and weights that launch ``v`` reads and writes."""
    region, types = executable.program.launches[v], executable.program.types
    weights = Subgraph(model, region.nodes).weights.values()
    return sum(types[each].nbytes for each in (*region.inputs, *region.outputs)) + sum(
        w.nbytes for w in weights
    )


def _team_us(launch: Launch, epsilon_us: float) -> float:
    return launch.cost_us + (epsilon_us * launch.switches if isinstance(launch, Candidate) else 0.0)
