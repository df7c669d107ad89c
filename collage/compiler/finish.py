"""The end of a compile: one race of the best plans and the engines, the last check, and loading what is handed over."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from collage.check.metrics import MetricError
from collage.compiler.bench import Bench
from collage.compiler.best import Best
from collage.compiler.executable import Executable
from collage.compiler.plan import Failed, Placed, Plan, RaceFailedError, Selection, Whole, is_reduced
from collage.compiler.record import Finished, found_before
from collage.compiler.referee import LAST, Referee
from collage.core.progress import Progress
from collage.errors import ModelError, NoPlacementError
from collage.measure.timing.effort import QUICK
from collage.measure.timing.interleave import FEWEST, Pace, at_worst, may_be_best
from collage.measure_db.results import Timing
from collage.report.best_so_far import FINISHED as BY_ITSELF
from collage.runtime.parts import load_parts
from collage.runtime.suffix import SuffixExecutor
from collage.schedule.program import Program
from collage.schedule.schedule import makespan_us

log = logging.getLogger(__name__)

TIE = 1.02
"""An engine, or a simpler plan, is handed over if it is slower than the best one by less than this factor."""
_FEW, _MANY = 2, 4
"""The most placements in the last race, if the time is short and otherwise."""
_BY_ROW_S = 2.0
_QUICK_LAST = Pace(rounds=12, least=FEWEST, limit_s=2.0)
_SHARE = 0.4
"""The share of the time that is left which the last race may take."""
_UNMEASURED = "no engine runs the model on made-up inputs; give inputs of your own with --input (inputs= in Python)"


class Finish:
    """Selects one of the best plans, and loads it in this process."""

    def __init__(self, bench: Bench, referee: Referee, best: Best) -> None:
        self._bench = bench
        self._referee = referee
        self._best = best

    def select(self) -> Selection:
        """The best plan that is right, checked and loaded.

        Raises NoPlacementError or ModelError if there is none, and BudgetOverError.
        """
        self._bench.show(Progress("finish", 0, 1))
        best, rows = self._best, self._bench.task.source.rows
        timings, by_row = dict[Plan, Timing](), dict[Plan, Timing]()
        while plans := self._allowed(best.finalists(_FEW if self._hurried else _MANY)):
            if not timings.keys() >= {*plans}:  # others were far behind what is refused now
                timings = self._raced(plans)
                if rows:  # who is far behind on many rows may be ahead on one
                    timings = {p: Timing(us := best.us(p), 0.0, us, us, 1) for p in best.everything()} | timings
                    by_row = self._raced(best.everything(), by_row=True)
            for plan in [each for each in _ranked(at_worst(timings, by_row)) if each in best.everything()][:1]:
                selected = self._handed_over(plan, timings)
                if selected is not None:
                    return replace(selected, by_row=_by_label(plan, by_row))
        return self._unmeasured()

    def engine(self) -> Selection | None:
        """The fastest engine in the model's own dtypes, loaded in this process without any measurement, or None."""
        self._bench.whole.cannot_run = True
        engines = [e for e in self._best.everything() if isinstance(e, Whole) and not e.precision]
        found = (self._handed_over(plan, {}) for plan in self._allowed(engines))
        return next((each for each in found if each is not None), None)

    def recalled(self, plan: Plan) -> Selection | None:
        """What an earlier compile has selected, checked and loaded; None if that fails."""
        finished = found_before(self._bench)
        if finished is None:
            return None
        timing = finished.timings.get(plan.label)
        selected = None if timing is None else self._selected(plan, timing, finished)
        if selected is None:
            return None
        return replace(selected, timings=finished.timings, by_row=finished.by_row, predicted_us=finished.predicted_us)

    def _allowed(self, plans: Sequence[Plan]) -> list[Plan]:
        """The plans that may be handed over: with ``strict`` no engine on the whole model or its suffix."""
        if not self._bench.task.options.strict:
            return [*plans]
        return [plan for plan in plans if isinstance(plan, Placed) and not plan.suffix]

    def _raced(self, plans: Sequence[Plan], *, by_row: bool = False) -> dict[Plan, Timing]:
        """Timings of the plans in one race, perhaps on single rows. Plans that fail leave it."""
        pace = _QUICK_LAST if self._bench.task.options.effort is QUICK else LAST
        while left := [plan for plan in plans if plan in self._best.everything()]:
            seconds = min(_BY_ROW_S if by_row else pace.limit_s, _SHARE * self._bench.clock.deadline.remaining_s)
            try:
                return self._referee.race(left, replace(pace, limit_s=seconds), " at last", by_row)
            except RaceFailedError as error:
                self._failed(error.failed)
        return {}

    def _failed(self, failed: Failed) -> None:
        """Refuse the plan, and drop all that run the kernel to blame."""
        self._refuse(failed.plan, failed.reason)
        for plan in self._referee.sharing(self._best.everything(), failed):
            self._best.drop(plan)

    def _refuse(self, plan: Plan, reason: str) -> None:
        log.warning("%s: %s; not used", plan.label, reason)
        self._bench.known.fail(plan.label, reason)
        self._best.drop(plan)

    def _handed_over(self, plan: Plan, timings: Mapping[Plan, Timing]) -> Selection | None:
        timing = timings.get(plan) or Timing(us := self._best.us(plan), 0.0, us, us, 1)
        self._bench.show(Progress("check", 0, 1, plan.label))
        selected = self._selected(plan, timing)
        if selected is None:
            return None
        self._bench.show(Progress("check", 1, 1, plan.label))
        return replace(selected, timings=_by_label(plan, timings))

    def _selected(self, plan: Plan, timing: Timing, finished: Finished | None = None) -> Selection | None:
        """The plan, checked and loaded; None if that fails. ``finished`` is what an earlier compile has found of it."""
        try:
            if isinstance(plan, Whole):
                return self._engine(plan, timing, None if finished is None else finished.errors)
            if finished is not None:
                launches_us = finished.launches_us
            else:
                launches_us = self._referee.launches(plan) if plan.placement.candidates else ()
            return self._placement(plan, timing, launches_us)
        except RaceFailedError as error:
            self._failed(error.failed)
            return None

    def _engine(
        self, plan: Whole, timing: Timing, errors: tuple[float, float, float | None] | None = None
    ) -> Selection | None:
        """The engine, loaded in this process; None if that fails. ``errors`` are those of its outputs, if known."""
        whole, us = self._bench.whole, timing.median_us
        if wrong := self._wrong_engine(plan):
            self._refuse(plan, wrong)
            return None
        try:
            parts = whole.parts(plan, us, self._bench.nodes)
            executor = load_parts(parts, self._bench.task.backends)
        except Exception as error:  # a backend raises anything
            self._refuse(plan, str(error))
            return None
        if errors is None and plan.precision:
            errors = self._referee.engine_errors(plan)
        if errors is None:
            errors = *whole.found.errors.get(plan.label, (math.inf, math.inf)), None
        absolute, relative, on_samples = errors
        return Selection(plan, parts, executor, {}, us, us, absolute, relative, error=on_samples)

    def _wrong_engine(self, plan: Whole) -> str:
        """What is wrong with an engine on inputs of other kinds; "" if nothing is, or if all others are wrong, too."""
        whole = self._bench.whole
        if plan.label not in whole.found.errors and not plan.precision:
            return ""  # it was not tried on inputs: nobody can make them up
        if not (wrong := whole.on_hostile(plan)[0]):
            return ""
        others = [each for each in self._best.everything() if isinstance(each, Whole) and each.engine != plan.engine]
        return "" if all(whole.on_hostile(each)[0] for each in others) else wrong

    def _placement(self, plan: Placed, timing: Timing, launches_us: Sequence[float]) -> Selection | None:
        """The placement, checked with ONNX Runtime and loaded; None if it is wrong. Raises RaceFailedError."""
        bench, referee = self._bench, self._referee
        executable, finding = referee.checked(plan)
        if finding.complaint:
            self._refuse(plan, finding.complaint)
            return None
        error = None
        if bench.task.options.tolerance and (executable.precisions or not self._hurried):
            with suppress(MetricError, ModelError):  # which proposers have told
                error = referee.errors(plan)[0]
        whole: SuffixExecutor | None = None
        if plan.suffix:
            referee.open(plan)
        if executable.guarded and referee.unscanned:
            bench.known.note(referee.unscanned)
        parts, executor = bench.runs.load(executable, bench.assembler)
        absolute, relative = finding.absolute, finding.relative
        program, predicted_us = _with_times(executable, launches_us)
        parts = replace(parts, program=program)
        if plan.suffix:
            load = partial(referee.suffixes.load, plan, parts, executor)
            parts, whole = referee.guarded(plan, load)
            predicted_us = max(predicted_us, timing.median_us)
            absolute, relative = referee.suffixes.errors.get(plan, (absolute, relative))
        return Selection(plan, parts, whole or executor, {}, timing.median_us, predicted_us, absolute, relative, error)

    @property
    def _hurried(self) -> bool:
        return self._bench.clock.ended != BY_ITSELF or self._bench.task.options.effort is QUICK

    def _unmeasured(self) -> Selection:
        """An engine that loads the model, but fails on made-up inputs. Raises NoPlacementError and ModelError."""
        bench = self._bench
        problem = bench.why_no_graph or bench.known.no_placement
        reasons = bench.known.failures
        if bench.task.options.strict or bench.task.source.family:
            if problem is not None:
                raise problem
            raise NoPlacementError(f"no placement agrees with ONNX Runtime on the original model: {'; '.join(reasons)}")
        for label in bench.whole.found.loaded:
            plan = Whole(label.split(",")[0])
            selected = self._engine(plan, Timing(0.0, 0.0, 0.0, 0.0, 0))
            if selected is not None:
                return replace(selected, unmeasured=_UNMEASURED)
        refused = [f"{label}: {why}" for label, why in bench.whole.found.refused.items()]
        text = "; ".join([*reasons, *refused]) or "there is none among the backends"
        split = bench.imported.notes if bench.is_matched and bench.imported.suffix is not None else ()
        problems = [*split, *([] if problem is None else [str(problem)])]
        why = "; ".join(problems) or "The model has no placement"
        raise ModelError(f"{why.rstrip('.')}. And no engine can run the model whole: {text}")


def _by_label(first: Plan, timings: Mapping[Plan, Timing]) -> dict[str, Timing]:
    """The timings by label, where plans of the same label get numbers; that of the ``first`` has none."""
    found: dict[str, Timing] = {}
    for plan in sorted(timings, key=lambda each: (each != first, timings[each].median_us)):
        label, number = plan.label, 1
        while label in found:
            number += 1
            label = f"{plan.label} {number}"
        found[label] = timings[plan]
    return found


def _ranked(timings: Mapping[Plan, Timing]) -> list[Plan]:
    """The plans, the best one first. Of those that tie with it, simpler ones come first.

    Engines are simpler than placements, then the model's own dtypes than reduced ones, fewer launches than more,
    launches one after another than side by side, and usual settings than others.
    """
    by_time = sorted(timings, key=lambda plan: timings[plan].median_us)
    if not by_time:
        return []
    shortest_us = timings[by_time[0]].median_us
    named = {plan.label + str(number): timings[plan] for number, plan in enumerate(by_time)}
    alike = [
        plan
        for plan in by_time
        if timings[plan].median_us <= TIE * shortest_us
        and (isinstance(plan, Whole) or may_be_best(timings[plan], named))
    ]
    alike.sort(key=lambda plan: (*_complexity(plan), timings[plan].median_us))
    return alike + [plan for plan in by_time if plan not in alike]


def _complexity(plan: Plan) -> tuple[object, ...]:
    if isinstance(plan, Whole):
        return 0, is_reduced(plan), 1, False, bool(plan.profile)
    launches = len(plan.placement.candidates) + len(plan.placement.transforms)
    return 1, plan.reduced, launches, plan.streams is not None, False


def _with_times(executable: Executable, times: Sequence[float]) -> tuple[Program, float]:
    """The program with the times of its launches, and the end of its schedule by them, in microseconds.

    If the times are not known, these are the program as it is and the predicted time.
    """
    program = executable.program
    if len(times) != len(program.launches):
        return program, executable.plan.placement.predicted_us
    found = {
        region: replace(region, cost_us=us, noise_us=0.0) for region, us in zip(program.launches, times, strict=True)
    }
    timed = replace(
        program,
        regions=tuple(found.get(each, each) for each in program.regions),
        launches=tuple(found[each] for each in program.launches),
    )
    return timed, makespan_us(program.ordered.dag, program.ordered.schedule, list(times))
