"""Streams: which kernels of a mix take less time single-threaded, side by side with others.

The mix is placed for launches that run one after another, each on the whole team. Here each kernel is measured on a
single thread, too. Launches that do not depend on each other are scheduled side by side if that is shorter. Several
algorithms propose schedules (`collage.schedule`). Each proposal that the costs do not rule out runs once, and the next
ones are made with the times of its launches.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from dataclasses import replace
from typing import TypeAlias

from collage.compiler.bench import Bench
from collage.compiler.best import Best
from collage.compiler.executable import Executable
from collage.compiler.plan import Placed, Plan, Ran, StreamPlan, Verdict
from collage.compiler.propose.mixes import planned
from collage.frontend.model import Model
from collage.frontend.subgraph import Subgraph
from collage.graph.storage import Storage
from collage.kernel.transform import LayoutTransform
from collage.measure.measurer import Measurer
from collage.schedule.dag import Dag
from collage.schedule.gpu_streams import gpu_schedules
from collage.schedule.inter_op import schedule_inter_op
from collage.schedule.list_schedule import list_schedule
from collage.schedule.schedule import TEAM, Schedule, makespan_us
from collage.schedule.stream_mapping import nimble, opara
from collage.schedule.timeline import Algorithm, Costs, TimedSchedule
from collage.search.candidate import Candidate
from collage.search.candidates import candidates_of, offers_of, ports_of
from collage.search.transforms import PlacedTransform

_LEAST_GAIN = 0.03
"""The share of the time on the whole team that a schedule has to save. A smaller gain is lost in the noise."""
_CLOSE = 1.1
"""A factor on the shortest schedule by the costs: longer ones are not run. Costs are off by as much in the network."""
_BARRIER_US, _EVENT_US = 0.3, 0.12
"""What it takes a team of two threads to meet (0.1 to 0.75), and a stream to wait for an event of another one."""
_ROUNDS, _MOST_FIRST = 3, 3
"""The rounds, and the proposals that run in the first of them; there is one in each of the others."""


def streams(bench: Bench, best: Best) -> Generator[Plan, Verdict, None]:
    """Schedules of the best mix with concurrent launches, if there is more than one thread."""
    found = _one_after_another(bench, best)
    if found is None or bench.task.target.threads < 2:
        return
    mix, base = found
    dag = base.program.ordered.dag
    beside = {v for v in dag.beside_others if not base.program.on_gpu[v]}
    if not beside:
        return
    single = tuple(single_threaded(bench, base.launches, beside))
    threads = base.program.threads
    team_us = [_team_us(each, bench.known.epsilon_us) for each in base.launches]
    single_us: list[float | None] = [None if each is None else each.cost_us for each in single]
    moved = [_moved_bytes(bench.model, base, v) for v in range(len(dag))]
    tried: set[Schedule] = set()
    for number in range(_ROUNDS):
        costs = Costs(tuple(team_us), tuple(single_us), _BARRIER_US, _EVENT_US)
        proposals = _proposals(dag, costs, threads, moved)[: _MOST_FIRST if number == 0 else 1]
        new = [(name, found.schedule) for name, found in proposals if found.schedule not in tried]
        if not new:
            return
        for name, schedule in new:
            tried.add(schedule)
            by_costs = [
                team_us[v] if schedule.streams[v] == TEAM else (single_us[v] or team_us[v]) for v in range(len(dag))
            ]
            placement = replace(mix.placement, predicted_us=makespan_us(dag, schedule, by_costs))
            verdict = yield planned(bench, placement, StreamPlan(schedule, single, name))
            if not isinstance(verdict, Ran) or len(verdict.launches_us) != len(schedule.order):
                continue
            for v, us in zip(schedule.order, verdict.launches_us, strict=True):
                if schedule.streams[v] == TEAM:
                    team_us[v] = us
                else:
                    single_us[v] = us


def gpu_streams(bench: Bench, best: Best) -> Generator[Plan, Verdict, None]:
    """A plan for each schedule on streams of a GPU, if launches there are independent."""
    found = _one_after_another(bench, best)
    if found is None or not any(found[1].program.on_gpu):
        return
    mix, base = found
    dag, none = base.program.ordered.dag, (None,) * len(base.launches)
    moved = [_moved_bytes(bench.model, base, v) for v in range(len(dag))]
    costs = [each.cost_us for each in base.launches]
    schedules = gpu_schedules(dag, base.program.on_gpu, costs, moved)
    for schedule, name in {each: name for name, each in reversed(schedules.items())}.items():
        yield planned(bench, mix.placement, StreamPlan(schedule, none, name))


def _one_after_another(bench: Bench, best: Best) -> tuple[Placed, Executable] | None:
    """The best mix whose launches run one after another, with its times in the network."""
    for plan in best.everything():
        if isinstance(plan, Placed) and plan.streams is None:
            mix = bench.known.timed(plan)
            return mix, bench.assembler.assemble(mix, bench.known.tunings)
    return None


def _proposals(dag: Dag, costs: Costs, threads: int, moved_bytes: Sequence[int]) -> list[tuple[str, TimedSchedule]]:
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
    return sum(types[each].nbytes for each in (*region.inputs, *region.outputs)) + sum(w.nbytes for w in weights)


def _team_us(launch: Launch, epsilon_us: float) -> float:
    return launch.cost_us + (epsilon_us * launch.switches if isinstance(launch, Candidate) else 0.0)


Launch: TypeAlias = "Candidate | PlacedTransform"
_Storages: TypeAlias = "tuple[tuple[int, Storage], ...]"
_Work: TypeAlias = "tuple[tuple[int, ...], _Storages, _Storages, str]"
"""The nodes of a launch, the storages of its inputs and outputs, and its precision."""


def single_threaded(bench: Bench, launches: Sequence[Launch], beside: Collection[int]) -> list[Launch | None]:
    """The fastest counterparts on one thread of the launches with the indices ``beside``, measured if need be.

    They do the same in the same storages and the same precision. There is None for the other launches, and for those of
    engines.
    """
    task, known, model = bench.task, bench.known, bench.model
    measurer = bench.measurer.on_threads(1)
    wanted = [launches[at] for at in sorted(beside)]
    kernels = [each for each in wanted if isinstance(each, Candidate)]
    nodes, works = {each.nodes for each in kernels}, {_work(each) for each in kernels}
    matches = [m for m in known.matches if m.nodes in nodes and m.backend in task.on_team]
    build = replace(task.build, threads=1, tune_trials=0)
    offers, _ = offers_of(model, matches, task.backends, build)
    offers = [o for o in offers if (o.request.nodes, *ports_of(model, o.request), o.request.variant.precision) in works]
    outcomes = measurer.race([offer.request for offer in offers])
    known.single_threaded.update((o.request, (o.pattern, outcomes[o.request])) for o in offers if o.request in outcomes)
    errors = None if known.errors is None else known.errors.model
    fastest: dict[_Work, Candidate] = {}
    for candidate in candidates_of(model, offers, (), outcomes, task.on_team, errors):
        before = fastest.get(_work(candidate))
        if not candidate.outrun and (before is None or candidate.cost_us < before.cost_us):
            fastest[_work(candidate)] = candidate
    transforms = {each.transform: None for each in wanted if isinstance(each, PlacedTransform)}
    costs = measurer.measure_transforms([each for each in transforms if _runs_on_team(measurer, each)])
    found: list[Launch | None] = [None] * len(launches)
    for at in beside:
        each = launches[at]
        if isinstance(each, Candidate):
            found[at] = fastest.get(_work(each))
        elif each.transform in costs:
            found[at] = replace(each, cost_us=costs[each.transform])
    return found


def _runs_on_team(measurer: Measurer, transform: LayoutTransform) -> bool:
    maker = measurer.transform_backend(transform)
    return maker is not None and maker.on_team()


def _work(candidate: Candidate) -> _Work:
    return candidate.nodes, candidate.reads, candidate.writes, candidate.variant.precision
