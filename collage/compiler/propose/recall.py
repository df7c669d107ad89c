"""Recall: what an earlier compile of the same model has found is there again at once."""

from __future__ import annotations

from collections.abc import Generator

from collage.compiler.bench import Bench
from collage.compiler.best import Best
from collage.compiler.plan import Plan, Whole
from collage.compiler.record import look_up, plan_of
from collage.compiler.referee import Referee
from collage.compiler.verdict import Verdict


def recall(bench: Bench, best: Best) -> Generator[Plan, Verdict, None]:
    """The plan of an earlier compile of the same model.

    If that ended by itself, nothing is left to try, and the plan is not run again.
    """
    finished = look_up(bench)
    if finished is None:
        return
    plan = plan_of(bench, Referee(bench), finished)
    if plan is None:
        return
    if finished.complete:
        bench.known.note(*finished.notes)
        bench.known.engine_us.update((Whole(*named), us) for named, us in finished.engines)
        bench.known.tolerance, bench.known.graph_level = finished.tolerance, finished.graph_level
        best.settle(plan, finished)
    else:
        yield plan
