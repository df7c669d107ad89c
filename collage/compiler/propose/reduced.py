"""Reduced precision: the fastest placement whose outputs are within the user's tolerance, as far as samples show.

The model is placed under an error budget. What the search predicts of the error is an estimate: sensitivities are
measured one group of values at a time, and quadrature takes roundings for independent. So each placement is run on the
samples. If its error is above the tolerance, the estimate is corrected and the search repeated, until the error is
within it, or nothing of reduced precision is left. If the estimate was far too high, the search is repeated with more
room.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Generator
from dataclasses import dataclass, replace

from collage.check.compare import of_shared_digits
from collage.check.metrics import MetricError
from collage.check.sensitivity import sensitivities_on_samples
from collage.compiler.bench import Bench
from collage.compiler.best import Best
from collage.compiler.placing import place
from collage.compiler.plan import Beyond, Failed, Placed, Plan, Ran, Verdict, is_reduced
from collage.compiler.propose.mixes import mix_of, planned, promising_reduced
from collage.compiler.referee import Referee
from collage.core.progress import Progress
from collage.errors import ModelError
from collage.frontend.subgraph import edges
from collage.report.report import ErrorReport
from collage.search.dp_budget import GAP
from collage.search.errors import ErrorBudget, ErrorModel, of_outputs
from collage.search.steering import Steering

log = logging.getLogger(__name__)

_FIRST = 0.03
"""The error, as a share of the outputs' scale, that a search begins with by a metric that is not predicted."""
_LOOSE = 0.6
"""A placement is kept if its error is at least this share of the predicted one."""
_SLOWEST = 0.8
"""The kernels that are placed in reduced precision early take this share of the mix's time together."""
_NOTHING = (
    "nothing runs in reduced precision here (this takes a CPU with instructions for bfloat16 or 8 bits, and float32 "
    "operators); float32 remains"
)


@dataclass(frozen=True)
class Knobs:
    """How errors are searched.

    The search aims at a share ``aim`` of the tolerance, because other inputs have somewhat larger errors than the
    samples; it is repeated at most ``rounds`` times. Without ``sensitivities`` all of a kernel's error counts at first.
    ``gap`` is that of the budget.
    """

    aim: float = 0.85
    rounds: int = 6
    sensitivities: bool = True
    gap: float = GAP


def reduced(bench: Bench, best: Best) -> Generator[Plan, Verdict, None]:
    """Placements within the tolerance, each closer to it."""
    yield from _within(bench, best, Knobs())


def quick_reduced(bench: Bench, best: Best) -> Generator[Plan, Verdict, None]:
    """The same in few rounds: samples are few, and sensitivities take too long to measure."""
    yield from _within(bench, best, Knobs(aim=0.7, rounds=4, sensitivities=False))


def early_reduced(bench: Bench, best: Best) -> Generator[Plan, Verdict, None]:
    """Measures what could take the place of the slowest kernels of the first mix, and places within the tolerance.

    What is found out about errors tells what measuring gains from then on.
    """
    mix = mix_of(best)
    if mix is None or not any(offer.request.variant.precision for offer in bench.known.offers):
        return
    slowest: set[int] = set()
    left_us = _SLOWEST * sum(c.cost_us for c in mix.placement.candidates)
    for kernel in sorted(mix.placement.candidates, key=lambda c: c.cost_us, reverse=True):
        if left_us > 0:
            slowest.update(kernel.nodes)
            left_us -= kernel.cost_us
    bench.race(promising_reduced(bench, slowest), mix)
    # If the error is near the tolerance, launches side by side, whose kernels are others, are beyond it.
    yield from _within(bench, best, Knobs(aim=0.7, rounds=4, gap=0.02))


def _within(bench: Bench, best: Best, knobs: Knobs) -> Generator[Plan, Verdict, None]:
    asked = bench.task.asked
    assert asked is not None
    told = ErrorReport(asked.tolerance, asked.metric.name, asked.about)
    if not any(offer.request.variant.precision for offer in bench.known.offers):
        bench.known.tolerance = replace(told, reason=_NOTHING)
        bench.known.note(_NOTHING)
        return
    bench.show(Progress("errors", 0, 1))
    try:
        mix = mix_of(best)
        bench.accuracy  # noqa: B018  (raises ModelError if the reference does not run the samples)
        own = None if mix is None else Referee(bench).errors(mix)[0]
        told = replace(told, own=own)
        if own is not None and own > asked.tolerance:
            bench.known.tolerance = told
            bench.known.note(
                f"a tolerance of {asked.tolerance:g} is below float32's own error of {own:.2g} on {asked.about}; "
                "float32 remains"
            )
            return
        yield from _search(bench, best, told, knobs)
    except (MetricError, ModelError) as error:
        log.warning("%s", error)
        why = f"{str(error).rstrip('.')}; float32 remains"
        bench.known.tolerance = replace(told, reason=why)
        bench.known.note(why)


def _search(bench: Bench, best: Best, told: ErrorReport, knobs: Knobs) -> Generator[Plan, Verdict, None]:
    known, is_predicted = bench.known, bench.accuracy.asked.metric.is_predicted
    aimed = knobs.aim * told.tolerance
    budget = known.errors
    if budget is None:
        model = _error_model(bench) if knobs.sensitivities else ErrorModel()
        budget = ErrorBudget(aimed if is_predicted else _FIRST, model)
    steering = Steering(replace(budget, gap=knobs.gap), aimed, is_predicted)
    found, attempts, rounds = False, 0, 0
    seen: dict[tuple[object, ...], float] = {}
    while rounds < knobs.rounds and attempts < 50:
        budget = steering.budget
        plan = planned(bench, place(bench, budget))
        predicted = of_outputs(plan.placement.error)
        steering.budget = replace(budget, price_us=plan.placement.price_us)
        if predicted == 0:
            if not found and steering.step_back():
                rounds += 1
                continue
            break
        if seen.get(plan.alike, math.inf) <= told.tolerance:
            break
        verdict = yield plan
        if isinstance(verdict, Failed):
            attempts += 1
            if verdict.kernel is None:
                break
            continue
        rounds += 1
        on_samples, on_others = verdict.error or 0.0, verdict.foreseen or 0.0
        measured, largest = max(on_samples, knobs.aim * on_others), max(on_samples, on_others)
        seen[plan.alike] = largest
        about = rounds, predicted, on_samples, on_others
        log.info("round %d: predicted error %.2g, measured %.2g, %.2g foreseen of other inputs", *about)
        told = replace(told, rounds=rounds)
        if isinstance(verdict, Ran) and (refused := _refused(bench, plan)):
            known.offers = [o for o in known.offers if o.request.variant.precision not in refused]
            best.drop(plan)
            continue
        found = found or isinstance(verdict, Ran)
        spent = measured / (predicted if is_predicted else aimed)
        if not isinstance(verdict, Beyond) and (spent >= _LOOSE or predicted < budget.error / 2):
            break
        steering.learn(plan.placement, measured)
    known.errors = steering.budget
    known.tolerance = told
    if not found and not any(map(is_reduced, best.everything())):  # an earlier stage may have found one
        why = f"is within {told.tolerance:g}" if told.rounds else "is faster"
        known.note(f"no placement of reduced precision {why}; float32 remains")


def _refused(bench: Bench, plan: Placed) -> frozenset[str]:
    """Precisions that the last check will not let pass: those in which a large number costs others their digits."""
    referee = Referee(bench)
    found = of_shared_digits(referee.executable(plan).precisions)
    if not found:
        return frozenset()
    _, finding = referee.checked(plan)
    if finding.complaint:
        log.info("%s: %s", plan.label, finding.complaint)
        return found
    return frozenset()


def _error_model(bench: Bench) -> ErrorModel:
    """What predicts errors of outputs from those of kernels of reduced precision."""
    model = bench.model
    nodes = {o.request.nodes for o in bench.known.offers if o.request.variant.precision}
    taken = (value for each in nodes for ports in edges(model, each) for value in ports)
    values = sorted({value for value in taken if model.graph.values[value].producer is not None})
    digest, check = bench.measurer.as_loaded_digest, bench.clock.deadline.check
    return ErrorModel(sensitivities_on_samples(model, values, digest, bench.accuracy, bench.database, check))
