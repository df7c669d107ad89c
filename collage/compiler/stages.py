"""The stages of a compile, as a table: a proposer yields plans, and is sent the referee's verdicts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from collage.compiler.bench import Bench
from collage.compiler.best import Best
from collage.compiler.placing import uncovered
from collage.compiler.plan import Beyond, Failed, Placed, Plan, RaceFailedError, Ran, Verdict, Whole
from collage.compiler.propose.engines import engines, engines_folded, engines_reduced, profiles
from collage.compiler.propose.everything import doubtful, everything
from collage.compiler.propose.evolve import evolve
from collage.compiler.propose.mixes import calibrated, first_mix, other_variants, promising, quick_mix
from collage.compiler.propose.reduced import early_reduced, quick_reduced, reduced
from collage.compiler.propose.regions import regions
from collage.compiler.propose.streams import gpu_streams, streams
from collage.compiler.record import recall
from collage.compiler.referee import Referee
from collage.errors import NoPlacementError
from collage.measure.worker.protocol import CandidateRequest

log = logging.getLogger(__name__)

Proposer: TypeAlias = "Generator[Plan, Verdict, None]"
Need: TypeAlias = Callable[[Bench], bool]


def _engines(bench: Bench) -> bool:
    return bool(bench.task.engines) and not (bench.task.source.family or bench.task.options.strict)


def _graph(bench: Bench) -> bool:
    return bench.has_graph


def _cover(bench: Bench) -> bool:
    return bench.has_graph and not uncovered(bench)


def _tolerance(bench: Bench) -> bool:
    return bool(bench.task.options.tolerance)


def _streams(bench: Bench) -> bool:
    return bench.task.options.streams


def _graph_level(bench: Bench) -> bool:
    return bench.task.options.graph_level_s is not None


@dataclass(frozen=True)
class Stage:
    """A row of the table: ``propose`` makes a proposer, whose plans are run if the compile has all that it needs."""

    name: str
    propose: Callable[[Bench, Best], Proposer]
    needs: tuple[Need, ...] = ()


USUAL: tuple[Stage, ...] = (
    Stage("engines", engines, (_engines,)),
    Stage("recall", recall),
    Stage("engines in reduced precision", engines_reduced, (_tolerance, _engines, _graph)),
    Stage("first mix", first_mix, (_graph,)),
    Stage("slowest kernels in reduced precision", early_reduced, (_tolerance, _cover)),
    Stage("promising", promising, (_cover,)),
    Stage("streams", streams, (_streams, _cover)),
    Stage("streams of a GPU", gpu_streams, (_streams, _cover)),
    Stage("folded engines", engines_folded, (_engines, _graph)),
    Stage("other variants", other_variants, (_cover,)),
    Stage("everything", everything, (_cover,)),
    Stage("reduced precision", reduced, (_tolerance, _cover)),
    Stage("streams of the best", streams, (_streams, _cover)),
    Stage("streams of a GPU of the best", gpu_streams, (_streams, _cover)),
    Stage("profiles of engines", profiles, (_engines,)),
    Stage("merges and splits", regions, (_cover,)),
    Stage("calibrated", calibrated, (_cover,)),
    Stage("lost early", doubtful, (_cover,)),
    Stage("graph level", evolve, (_graph_level, _cover)),
)

QUICK_STAGES: tuple[Stage, ...] = (
    Stage("engines", engines, (_engines,)),
    Stage("recall", recall),
    Stage("engines in reduced precision", engines_reduced, (_tolerance, _engines, _graph)),
    Stage("quick mix", quick_mix, (_graph,)),
    Stage("reduced precision", quick_reduced, (_tolerance, _cover)),
    Stage("streams of a GPU", gpu_streams, (_streams, _cover)),
)


def run_stages(
    stages: Sequence[Stage], bench: Bench, referee: Referee, best: Best, *, until_first: bool = False
) -> None:
    """Run the rows until they end, or with ``until_first`` until there is a plan.

    Raises what a proposer raises, such as BudgetOverError and MeasurementError, but NoPlacementError and
    RaceFailedError, which end a row.
    """
    for stage in stages:
        bench.clock.deadline.check()
        if best.settled or (until_first and best.plan is not None):
            return
        if not all(need(bench) for need in stage.needs):
            continue
        before, started = best.first, time.perf_counter()
        tried = _run(stage, bench, referee, best)
        after = best.first
        gain = 1.0 if before is None or after is None else before.score / after.score
        seconds = time.perf_counter() - started
        log.info(
            "%7.1f s  %s: %d plans in %.1f s%s",
            bench.clock.deadline.elapsed_s,
            stage.name,
            tried,
            seconds,
            f", {gain:.3f}x" if gain > 1 else "",
        )


def _run(stage: Stage, bench: Bench, referee: Referee, best: Best) -> int:
    proposer, tried = stage.propose(bench, best), 0
    try:
        plan = next(proposer)
        while True:
            tried += 1
            plan = proposer.send(_verdict(bench, referee, best, plan))
    except StopIteration:
        pass
    except NoPlacementError as error:
        bench.known.no_placement = error
        log.info("%s: %s", stage.name, error)
    except RaceFailedError as error:  # a plan of a race that the proposer has run itself
        _drop(bench, referee, best, error.failed)
    finally:
        proposer.close()
    return tried


def _drop(bench: Bench, referee: Referee, best: Best, failed: Failed) -> None:
    """Drop the plans that run what has failed. The next kernel of the region takes the place of the one to blame."""
    log.warning("%s: %s", failed.plan.label, failed.reason)
    for plan in referee.sharing(best.everything(), failed):
        best.drop(plan)
    if failed.kernel is not None and isinstance(failed.kernel.what, CandidateRequest):
        nodes = failed.kernel.what.nodes
        bench.race([each.request for each in bench.known.offers if each.request.nodes == nodes])


def _verdict(bench: Bench, referee: Referee, best: Best, plan: Plan) -> Verdict:
    """The verdict on the plan. If the best one fails meanwhile, the plan runs beside the next one."""
    while True:
        verdict = referee.challenge(best.plan, plan)
        best.take(verdict)
        if not isinstance(verdict, Failed):
            break
        _drop(bench, referee, best, verdict)
        if verdict.plan == plan:
            break
    if isinstance(plan, Whole) and not isinstance(verdict, Ran):
        bench.known.engines_refused[plan] = verdict.reason
    if isinstance(verdict, Failed):
        return verdict
    if isinstance(verdict, Beyond):
        log.info("%s: %s", plan.label, verdict.reason)
        return verdict
    log.info(
        "%7.1f s      %s: %.4g ms, %.3f of the best time",
        bench.clock.deadline.elapsed_s,
        plan.label,
        verdict.us / 1e3,
        verdict.ratio,
    )
    if isinstance(verdict.plan, Placed):
        bench.measurer.network_us = max(bench.task.source.share_us, best.first.us if best.first else 0.0)
    return verdict
