"""The referee: it runs a plan beside the best one so far, and says what came of it.

Everything is remembered in the database, so a question that was asked before costs nothing.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from collage.check.compare import difference, of_shared_digits
from collage.check.extraordinary import note
from collage.check.final_check import BEYOND_GUARDS, FinalCheck, Finding
from collage.check.metrics import MetricError
from collage.compiler.bench import Bench
from collage.compiler.executable import Entry, Executable, graph_digest, network_key
from collage.compiler.plan import Beyond, Failed, Placed, Plan, RaceFailedError, Ran, Verdict, Whole, is_reduced
from collage.compiler.suffixes import Suffixes
from collage.core.progress import Progress
from collage.errors import CollageError, DatabaseError, MeasurementError, ModelError
from collage.measure.timing.interleave import FEWEST, SURE, Pace, race_by_turns
from collage.measure_db.database import NetworkKey
from collage.measure_db.keys import RaceKey
from collage.measure_db.results import Timing

T = TypeVar("T")

log = logging.getLogger(__name__)

DUEL = Pace(rounds=6, least=FEWEST, limit_s=1.0)
_AGAIN = Pace(rounds=FEWEST + 1, least=FEWEST, limit_s=0.5)
LAST = Pace(rounds=30, least=SURE, limit_s=8.0)
_SETTLE_S = 0.03
_LAST_S, _OPENINGS = 4.0, 3.0
"""The end of a compile takes some seconds, and as long as opening a plan so many times."""
_CALLS, _LEAST_TURN_S, _MOST_TURN_S = 8, 0.005, 0.02
"""A turn has so many calls of the network, within these seconds."""
_NOTED_S = 0.1


def _ratio(timings: Mapping[Plan, Timing], plan: Plan, best: Plan | None) -> float:
    """The plan's time over that of the best one."""
    return 1.0 if best is None else timings[plan].median_us / timings[best].median_us


class Referee:
    """Runs plans of one compile. ``turn_s`` and the pause before an engine's successor are the same for all races."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._executables: dict[Placed, Executable] = {}
        self._turn_s = _MOST_TURN_S
        self.suffixes = Suffixes(bench)

    def challenge(self, best: Plan | None, plan: Plan) -> Verdict:
        """What comes of the plan beside the best one so far. The verdict may be about the best one's failure.

        A plan of reduced precision is run on samples first. Raises MeasurementError and BudgetOverError.
        """
        error = foreseen = None
        try:
            if is_reduced(plan):
                error, foreseen = self.errors(plan)
                if complaint := self.complaint(error, foreseen) or self._of_shared_digits(plan):
                    return Beyond(plan, error, foreseen, complaint)
            plans = [plan] if best is None or best == plan else [best, plan]
            pace = Pace(FEWEST, FEWEST) if len(plans) == 1 else DUEL
            timings = self.race(plans, pace)
            if best in timings and _ratio(timings, plan, best) < 1.0:  # who was lucky once has to win again
                timings = max(timings, self.race(plans, _AGAIN, " again"), key=lambda each: _ratio(each, plan, best))
            launches = self.launches(plan)
        except RaceFailedError as error_:
            return error_.failed
        except (MetricError, ModelError) as error_:
            return Failed(plan, str(error_))
        mine = timings[plan]
        if isinstance(plan, Whole):
            self._bench.known.engine_us[plan] = mine.median_us
        return Ran(plan, mine.median_us, _ratio(timings, plan, best), launches, error, foreseen)

    def race(self, plans: Sequence[Plan], pace: Pace, mark: str = "", by_row: bool = False) -> dict[Plan, Timing]:
        """Timings of the plans in one interleaved run, from the database or made now.

        With ``by_row``, each call of an engine gets one row of the inputs. Raises RaceFailedError if one of them fails,
        and what a worker raises.
        """
        entries = {plan: self.entry(plan) for plan in plans}
        target, graph = self._bench.task.target, self._graph
        keys: dict[str, tuple[NetworkKey, str]] = {}
        for number, plan in enumerate(plans):
            key = network_key(entries[plan], [*entries.values()], graph, target)
            key = replace(key, placement=f"{key.placement} by turns{mark}{', by row' * by_row}")
            keys[str(number)] = key, f"{self._bench.task.source.name}: {plan.label}"
        run = partial(self._race, plans, pace, by_row)
        found = self._bench.database.remember(RaceKey(keys), run)
        return {plan: found[str(number)] for number, plan in enumerate(plans)}

    def _race(self, plans: Sequence[Plan], pace: Pace, by_row: bool) -> Mapping[str, Timing]:
        self._bench.show(Progress("compare", 0, 1, ", ".join(plan.label for plan in plans)))
        turns = {}
        if len(plans) > 1:
            self._bench.settle()
        for number, plan in enumerate(plans):
            self.open(plan)
            turns[str(number)] = partial(self.guarded, plan, partial(self._turn, plan, plans, by_row))
        found = race_by_turns(turns, pace)
        shortest_s = min(timing.median_us for timing in found.values()) / 1e6
        self._turn_s = min(_MOST_TURN_S, max(_LEAST_TURN_S, _CALLS * shortest_s))
        self._bench.raced += 1
        return found

    def open(self, plan: Plan) -> None:
        """Load the plan, and check it on the usual inputs, unless it is open. Raises RaceFailedError."""
        self.guarded(plan, partial(self._open, plan))

    def _open(self, plan: Plan) -> None:
        if isinstance(plan, Whole):
            found = self._bench.whole.engines.open(plan)
            if found.outputs is None:
                raise CollageError(found.message)
        elif plan.suffix:
            self.suffixes.open(plan, self.executable(plan))
        else:
            started = time.perf_counter()
            self._bench.runs.open(self.executable(plan))
            self._bench.clock.keep(_LAST_S + _OPENINGS * (time.perf_counter() - started))

    def _turn(self, plan: Plan, plans: Sequence[Plan], by_row: bool) -> Sequence[float]:
        settle_s = _SETTLE_S if any(each != plan and _spins(each) for each in plans) else 0.0
        if isinstance(plan, Whole) or plan.suffix:
            name = plan.label if isinstance(plan, Whole) else self.suffixes.names[plan]
            return self._bench.whole.engines.turn(name, settle_s, self._turn_s, by_row=by_row)
        return self._bench.runs.turn(self.executable(plan), settle_s, self._turn_s)

    def guarded(self, plan: Plan, work: Callable[[], T]) -> T:
        """What the work on an engine gives, for the whole model or its suffix. Raises RaceFailedError if it fails."""
        try:
            return work()
        except (MeasurementError, DatabaseError):  # a full disk is nobody's fault
            raise
        except CollageError as error:
            if not isinstance(plan, Whole) and not plan.suffix:
                raise
            self._bench.known.fail(plan.label, str(error))
            raise RaceFailedError(Failed(plan, str(error))) from error

    def sharing(self, plans: Sequence[Plan], failed: Failed) -> list[Plan]:
        """Those of the plans that run the kernel to blame, or are the failed one."""
        return [
            plan
            for plan in plans
            if plan == failed.plan or (isinstance(plan, Placed) and failed.kernel in self.executable(plan).kernels)
        ]

    def executable(self, plan: Placed) -> Executable:
        """The plan, ready to be run."""
        if plan not in self._executables:
            self._executables[plan] = self._bench.assembler.assemble(plan, self._bench.known.tunings)
        return self._executables[plan]

    def entry(self, plan: Plan) -> Entry:
        """What identifies the plan in keys."""
        if isinstance(plan, Whole):
            versions = {plan.engine: self._bench.task.versions[plan.engine]}
            return Entry(self._bench.whole.digest(plan), versions)
        executable = self.executable(plan)
        if plan.suffix:
            return Entry(f"{executable.digest} then {plan.suffix}", executable.versions)
        return Entry(executable.digest, executable.versions)

    @property
    def _graph(self) -> str:
        if self._bench.task.source.family:
            return graph_digest(self._bench.model)
        return self._bench.whole.form.digest

    def launches(self, plan: Plan) -> tuple[float, ...]:
        """The microseconds of the plan's launches in their places. Raises RaceFailedError."""
        if isinstance(plan, Whole):
            return ()
        found = self._bench.runs.launch_times_us(self.executable(plan))
        self._bench.known.learn(plan, self.executable(plan).launches, found)
        return found

    # Errors

    def errors(self, plan: Plan) -> tuple[float, float]:
        """The error on samples, and the one foreseen of other inputs.

        Raises RaceFailedError, MetricError and ModelError.
        """
        bench = self._bench
        accuracy = bench.accuracy
        if isinstance(plan, Placed):
            return bench.runs.error_and_foreseen(self.executable(plan), accuracy)
        self.open(plan)
        errors = accuracy.errors(partial(self._engine_outputs, plan))
        return accuracy.asked.metric.of_all(errors), accuracy.asked.metric.foreseen(errors)

    def engine_errors(self, plan: Whole) -> tuple[float, float, float | None]:
        """The largest absolute and relative error of a reduced engine's outputs, and its error on samples."""
        engines = self._bench.whole.engines
        found, expected = engines.open(plan).outputs, engines.expected().outputs
        if found is None or expected is None:
            return math.inf, math.inf, None
        try:
            return *difference([*found], [*expected]), self.errors(plan)[0]
        except (MetricError, ModelError):
            return *difference([*found], [*expected]), None

    def _of_shared_digits(self, plan: Plan) -> str:
        """What is wrong with an engine in whose precision a large number costs all others their digits, or ""."""
        if not isinstance(plan, Whole) or not of_shared_digits({plan.precision}):
            return ""
        by_outputs = not self._bench.task.options.metric.is_max
        check = self._bench.final_check.of_reduced({plan.precision}, of_outputs=by_outputs)
        check = replace(check, samples=tuple(each for each in check.samples if each.ordinary))
        return check.look(lambda inputs: (self._engine_outputs(plan, inputs), False)).complaint

    def _engine_outputs(self, plan: Whole, inputs: Sequence[Any]) -> Sequence[Any]:
        bench = self._bench
        given = bench.whole.inputs_for(bench.model.input_names, inputs)
        found = bench.whole.engines.outputs(plan, given)
        if found.outputs is None:
            raise MetricError(found.message)
        names = [info.name for info in bench.whole.form.original.graph.output]
        made = dict(zip(names, found.outputs, strict=True))
        return [made[name] for name in bench.model.output_names]

    def complaint(self, error: float, foreseen: float) -> str:
        """What is wrong with a plan of these errors, or "" if it keeps the tolerance."""
        tolerance, about = self._bench.task.options.tolerance, self._bench.accuracy.about
        if max(error, foreseen) <= tolerance:
            return ""
        of_others = f", and of {foreseen:.2g} foreseen on other inputs" if error <= tolerance else ""
        return f"an error of {error:.2g} on {about}{of_others}, above the tolerance of {tolerance:g}"

    @property
    def unscanned(self) -> str:
        """A note about inputs that are not scanned, since their usual values are out of the range; or ""."""
        model = self._bench.model
        return note(model.graph, model.input_names, self._bench.measurer.extraordinary)

    # The last check

    def checked(self, plan: Placed) -> tuple[Executable, Finding]:
        """The executable of a plan, and what the last check finds. Raises RaceFailedError.

        If it errs on unusual inputs only, it is replaced by one that scans its inputs, and that is checked. If usual
        inputs lead to infinities in a model of float16, those are no sign that a number was too large.
        """
        bench, executable = self._bench, self.executable(plan)
        assembler, tunings = bench.assembler, bench.known.tunings
        by_outputs = not bench.task.options.metric.is_max

        def check() -> FinalCheck:
            if not executable.precisions:
                return bench.final_check
            return bench.final_check.of_reduced(executable.precisions, of_outputs=by_outputs)

        about = " by outputs" if executable.precisions and by_outputs else ""
        finding = bench.runs.finding(executable, check, about)
        if finding.complaint == BEYOND_GUARDS and assembler.guards_halves:
            assembler.guards_halves = False
            without = assembler.assemble(plan, tunings)
            if without.digest != executable.digest:
                executable, finding = without, bench.runs.finding(without, check, about)
            assembler.guards_halves = finding.complaint == BEYOND_GUARDS
        if finding.complaint and executable.guarded and not finding.ordinary and self.unscanned:
            finding = replace(finding, complaint="")  # the inputs that it errs on are not scanned
        if not finding.complaint or finding.ordinary or executable.guarded:
            return executable, finding
        log.info("%s: %s; its inputs are guarded", plan.label, finding.complaint)
        guarded = assembler.assemble(plan, tunings, guard_inputs=True)
        return guarded, bench.runs.finding(guarded, check, about)


def _spins(plan: Plan) -> bool:
    """Whether threads of a library may spin after the plan's turn."""
    return isinstance(plan, Whole) or bool(plan.suffix) or plan.exclusive
