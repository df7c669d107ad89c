"""Launches of the best plan on several streams of a GPU."""

from __future__ import annotations

from collections.abc import Generator

from collage.compiler.bench import Bench
from collage.compiler.best import Best
from collage.compiler.plan import Placed, Plan, StreamPlan
from collage.compiler.propose.mixes import planned
from collage.compiler.propose.streams import moved_bytes
from collage.compiler.verdict import Verdict
from collage.graph.storage import CUDA
from collage.schedule.gpu_streams import gpu_schedules
from collage.search.candidate import Candidate


def gpu_streams(bench: Bench, best: Best) -> Generator[Plan, Verdict, None]:
    """A plan for each schedule on streams, if launches on the GPU are independent."""
    mix = next((p for p in best.everything() if isinstance(p, Placed) and p.streams is None), None)
    if mix is None or not any(map(_writes_on_gpu, mix.placement.candidates)):
        return
    mix = bench.known.timed(mix)
    base = bench.assembler.assemble(mix, bench.known.tunings)
    moved = [moved_bytes(bench.model, base, v) for v in range(len(base.launches))]
    costs = [each.cost_us for each in base.launches]
    none = (None,) * len(base.launches)
    dag = base.program.ordered.dag
    for name, schedule in gpu_schedules(dag, base.program.on_gpu, costs, moved).items():
        plan = planned(bench, mix.placement, StreamPlan(schedule, none, name))
        if plan.alike not in bench.known.ran:  # several algorithms may make the same schedule
            yield plan


def _writes_on_gpu(candidate: Candidate) -> bool:
    return any(storage.device == CUDA for _, storage in candidate.writes)
