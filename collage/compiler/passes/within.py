"""Within: the fastest placement whose outputs are within the user's tolerance, as far as the samples show.

The model is placed in its own dtypes first, and then once more with kernels of reduced precision, under an error
budget. What the search predicts of the error is an estimate: sensitivities are measured one group of values at a time,
and quadrature takes roundings for independent. So the placement is run on the samples. Where its error is above the
tolerance the estimate is corrected and the search repeated, until the error is within it, or nothing of reduced
precision is left. Where the estimate was far too high, the search is repeated with more room.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from collage.check.compare import of_shared_digits
from collage.compiler.accuracy import Accuracy
from collage.compiler.events import Bounded, Noted
from collage.compiler.metrics import MetricError
from collage.compiler.plan import COLLAGE, FLOAT32, QUICK, Plan
from collage.compiler.sensitivities import error_model
from collage.compiler.state import Compilation, Context, Pass
from collage.compiler.steering import Steering
from collage.core.progress import Progress
from collage.errors import ModelError
from collage.search.dp_budget import GAP
from collage.search.errors import ErrorBudget, ErrorModel, of_outputs
from collage.search.placement import Placement

log = logging.getLogger(__name__)

CHECKED = (COLLAGE, "mix", QUICK)
"""The plans of a proposal whose errors correct the estimate. Others are checked before they are selected."""
_NOTHING = (
    "nothing runs in reduced precision here (this takes a CPU with instructions for bfloat16 or 8 bits, and float32 "
    "operators); float32 remains"
)


@dataclass(frozen=True)
class Within:
    """Runs ``search``, which places the model, in the model's own dtypes, and then within the tolerance.

    The search aims at a share ``aim`` of the tolerance, because other inputs have somewhat larger errors than the
    samples. Where the samples' errors differ much, it aims at an error foreseen of other inputs (see ``foreseen``) that
    is the tolerance. The search is repeated at most ``rounds`` times. A placement is kept where its error is at least
    ``loose`` times the predicted one, or where it spends less than half of its budget. Where nothing
    is predicted to be within the aim, half of the way to the least error that was beyond it is allowed. By a metric
    that is not predicted the search begins with an error of ``first`` of the outputs' scale. Without ``sensitivities``
    all of a kernel's error counts at first. A later search begins with what an earlier one has found out about errors.
    ``gap`` is that of the budget.
    """

    search: Pass
    aim: float = 0.85
    rounds: int = 6
    loose: float = 0.6
    first: float = 0.03
    sensitivities: bool = True
    gap: float = GAP

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Sets what the search sets, ``errors``, and the budget where kernels of reduced precision are placed."""
        return self.beside(context, self.search(context, replace(compilation, budget=None)))

    def beside(self, context: Context, compilation: Compilation) -> Compilation:
        """The same where the model is placed in its own dtypes already."""
        if not context.options.tolerance:
            return compilation
        if not any(offer.request.variant.precision for offer in compilation.offers):
            return compilation.told(_unmeasured(context, _NOTHING), Noted(_NOTHING))
        context.progress(Progress("errors", 0, 1))
        try:
            accuracy = context.workbench(compilation).accuracy
            own, _ = self._errors(context, compilation, accuracy)
            if own > context.options.tolerance:
                told = Bounded(context.options.tolerance, accuracy.asked.metric.name, accuracy.about, own)
                return compilation.told(told, Noted(_too_small(context, own, accuracy)))
            return self._reduced(context, compilation, accuracy, own)
        except (MetricError, ModelError) as error:
            log.warning("%s", error)
            why = f"{str(error).rstrip('.')}; float32 remains"
            return compilation.told(_unmeasured(context, why), Noted(why))

    def _reduced(self, context: Context, exact: Compilation, accuracy: Accuracy, own: float) -> Compilation:
        """The best compilation of all rounds, with the fastest plan of the exact one beside its own."""
        tolerance, is_predicted = context.options.tolerance, accuracy.asked.metric.is_predicted
        aimed = self.aim * tolerance
        budget = exact.errors
        if budget is None:
            model = error_model(context, exact, accuracy) if self.sensitivities else ErrorModel()
            budget = ErrorBudget(aimed if is_predicted else self.first, model)
        steering = Steering(replace(budget, gap=self.gap), aimed, is_predicted)
        best: Compilation | None = None
        latest = exact
        told = Bounded(tolerance, accuracy.asked.metric.name, accuracy.about, own)
        seen: dict[tuple[object, ...], float] = {}
        for number in range(1, self.rounds + 1):
            calibration = replace(latest.calibration, rounds=(), seen=(), converged=False)
            budget = steering.budget
            latest = self.search(context, replace(latest, budget=budget, calibration=calibration))
            found = latest
            placement = max((plan.placement for plan in _checked(found.plans)), key=_error)
            predicted = of_outputs(placement.error)
            steering.budget = replace(budget, price_us=found.placed.placement.price_us)
            if predicted == 0 and best is None and steering.step_back():
                continue
            if predicted == 0 or seen.get(_kernels(found), math.inf) <= tolerance:
                break
            on_samples, on_others = self._errors(context, found, accuracy)
            measured, largest = max(on_samples, self.aim * on_others), max(on_samples, on_others)
            seen[_kernels(found)] = largest
            about = number, predicted, on_samples, on_others
            log.info("round %d: predicted error %.2g, measured %.2g, %.2g foreseen of other inputs", *about)
            told = replace(told, rounds=number)
            if largest <= tolerance and (refused := self._refused(context, found)):
                latest = _without(latest, refused)
                continue
            if largest <= tolerance and (best is None or _us(found) < _us(best)):
                best = found
            spent = measured / (predicted if is_predicted else aimed)
            if largest <= tolerance and (spent >= self.loose or predicted < budget.error / 2):
                break
            steering.learn(placement, measured)
        if best is None:
            why = f"is within {tolerance:g}" if told.rounds else "is faster"
            note = Noted(f"no placement of reduced precision {why}; float32 remains")
            return replace(exact, errors=steering.budget).told(told, note)
        plans = (*best.plans, replace(exact.plans[0], label=FLOAT32))
        return replace(best, plans=plans, errors=steering.budget).told(told)

    def _refused(self, context: Context, compilation: Compilation) -> frozenset[str]:
        """Precisions that the last check will not let pass: those in which a large number costs others their digits.

        The check is made now where a placement has them, since all that the search finds later would have them, too.
        """
        bench = context.workbench(compilation)
        for plan in _checked(compilation.plans):
            executable = bench.assembler.assemble(plan, compilation.tunings)
            if found := of_shared_digits(executable.precisions):
                _, finding = bench.checked(executable, compilation.tunings)
                if finding.complaint:
                    log.info("%s: %s", plan.label, finding.complaint)
                    return found
        return frozenset()

    def _errors(self, context: Context, compilation: Compilation, accuracy: Accuracy) -> tuple[float, float]:
        """The largest error of the proposal's plans on the samples, and the largest one foreseen of other inputs.

        Raises MetricError, and where a plan fails.
        """
        bench = context.workbench(compilation)
        executables = [bench.assembler.assemble(p, compilation.tunings) for p in _checked(compilation.plans)]
        dropped = bench.runs.why_dropped(executables)
        left = [each for each in executables if each.label not in dropped]
        errors = [bench.runs.error_and_foreseen(each, accuracy) for each in left]
        on_samples, on_others = zip(*errors, strict=True) if errors else ([math.inf], [math.inf])
        return max(on_samples), max(on_others)


def _unmeasured(context: Context, reason: str) -> Bounded:
    options = context.options
    return Bounded(options.tolerance, options.metric.name, reason=reason)


def _checked(plans: Sequence[Plan]) -> list[Plan]:
    return [plan for plan in plans if plan.label in CHECKED]


def _kernels(compilation: Compilation) -> tuple[object, ...]:
    """The kernels of the proposal's plans, whatever they cost."""
    return tuple(
        (c.nodes, c.backend, c.variant) for p in _checked(compilation.plans) for c in p.placement.candidates
    )


def _without(compilation: Compilation, precisions: frozenset[str]) -> Compilation:
    """Offer no kernels of these precisions any more."""
    offers = tuple(each for each in compilation.offers if each.request.variant.precision not in precisions)
    return replace(compilation, offers=offers)


def _error(placement: Placement) -> float:
    return placement.error


def _us(compilation: Compilation) -> float:
    return compilation.placed.placement.predicted_us


def _too_small(context: Context, own: float, accuracy: Accuracy) -> str:
    asked = f"a tolerance of {context.options.tolerance:g}"
    return f"{asked} is below float32's own error of {own:.2g} on {accuracy.about}; float32 remains"
