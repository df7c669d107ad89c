"""Recall: what a finished compile has found is there again at once, as long as all that it rests on is unchanged.

Without it the passes of the search would mostly look up what was measured, but not only. They would know from the start
what later passes of the first compile have measured, and be led to other mixes on the way, which have to be run.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from collage.compiler.beyond import beyond, on_samples
from collage.compiler.by_known import candidates_in
from collage.compiler.events import Considered, Event, Evolved, Noted
from collage.compiler.executable import Executable
from collage.compiler.finished import BUSY_SHARE, FINISHED, Finished
from collage.compiler.finished_key import finished_key
from collage.compiler.finished_plan import Assembled, Reading, read_variants
from collage.compiler.passes.select import selection_of
from collage.compiler.plan import Plan
from collage.compiler.plan_failures import KernelRejectedError, PlanDroppedError
from collage.compiler.proposal import Proposal
from collage.compiler.record_finished import finished_of, times_alone_us
from collage.compiler.selection import Selection
from collage.compiler.state import Compilation, Context, Pass, run
from collage.compiler.workbench import Workbench
from collage.core.deadline import BudgetOverError
from collage.core.nvml import Clocks
from collage.core.progress import Progress
from collage.errors import MeasurementError
from collage.graph.storage import FORMATS
from collage.measure_db.doubt import held_back
from collage.measure_db.keys import Raced
from collage.measure_db.results import Measurement, Rejection
from collage.search.candidates import Offer, with_floor
from collage.search.network_costs import InNetwork, NetworkCosts

log = logging.getLogger(__name__)


class OutOfDateError(Exception):
    """What a finished compile rests on has changed since."""


@dataclass(frozen=True)
class Recall:
    """Recalls what a finished compile of the same model has found, or runs the passes of ``search`` and records it.

    The plan is recalled where each of its kernels has the time that it had then, and no failure is known of it. The
    last check is made again where its result is not known. Nothing is recorded of a compile that was stopped, nor of
    one in which memory was short, a GPU slow, or a candidate late on a busy machine: another compile may measure anew
    what came of that.
    """

    search: tuple[Pass, ...]

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Sets the proposal, the plan and the selection, or what the search sets. Raises what the search raises."""
        key = finished_key(context, compilation)
        if key is None:
            return run(self.search, context, compilation)
        known = FINISHED.at(key).look_up(context.database)
        if known is not None:
            try:
                # Single measurements that were disturbed have not decided, or the whole would be doubted.
                with context.database.trusting():
                    return _Recalled(context, compilation, known).result()
            except (OutOfDateError, KernelRejectedError, PlanDroppedError) as error:
                log.info("searching again, since a finished compile is out of date: %s", error)
        found = run(self.search, context, compilation)
        hardware = context.target.measured_on
        try:
            finished = finished_of(context.workbench(found), compilation, found)
        except (BudgetOverError, MeasurementError) as error:
            log.info("what the compile has found is not recorded: %s", error or "there was no time")
            return found
        if finished is not None and not _of_the_day(found, context.database.best_clocks(hardware)):
            FINISHED.at(key).record(context.database, finished)
        return found


def _of_the_day(found: Compilation, best: Mapping[str, Clocks]) -> bool:
    """Whether a kernel had too little memory or time, or a GPU's clocks were held back for many of them."""
    outcomes = [*found.outcomes.values()]
    rejected = [each for each in outcomes if isinstance(each, Rejection)]
    if any(each.free_bytes is not None for each in rejected):
        return True
    noted = [each.clocks for each in outcomes if not isinstance(each, Rejection) and each.clocks is not None]
    return sum(held_back(each, best) for each in noted) > BUSY_SHARE * len(noted)


@dataclass(frozen=True)
class _Recalled:
    """A finished compile, and the compilation that it is recalled in, whose offers are known."""

    context: Context
    compilation: Compilation
    known: Finished

    def result(self) -> Compilation:
        """The compilation with the known result. Raises OutOfDateError, KernelRejectedError and PlanDroppedError."""
        shown = self.known.shown
        try:
            placed, plan, considered = self._placed()
        except (LookupError, ValueError) as error:
            raise OutOfDateError(f"it does not fit the model: {error}") from error
        selected = self._selected(self._bench.assembler.assemble(plan, placed.tunings), placed)
        engine = (shown.baseline, shown.timings[shown.baseline].median_us) if shown.baseline else None
        self.context.course.improved(selected.label, selected.measured_us, engine)
        told: list[Event] = [*considered, *map(Noted, shown.notes)]
        told += [] if shown.bounded is None else [shown.bounded]
        told += [] if shown.evolved is None else [Evolved(shown.evolved)]
        return replace(placed, selected=selected).told(*told)

    @property
    def _bench(self) -> Workbench:
        return self.context.workbench(self.compilation)

    def _placed(self) -> tuple[Compilation, Plan, Sequence[Considered]]:
        """The compilation with the proposal and the plan, and what other passes considered.

        Raises ValueError and LookupError for what is not of this model.
        """
        context, known = self.context, self.known
        variants = read_variants(known.variants, (*FORMATS, *context.registry.formats))
        reading = Reading(self.compilation.imported, context.backends, context.without_switch, variants)
        suggested = [Offer(reading.request(named), why) for named, why in known.suggested]
        offers = (*self.compilation.offers, *suggested)
        outcomes = self._bench.measurer.known([offer.request for offer in offers])
        in_network = ((reading.request(named), us) for named, us in known.in_network)
        corrections = NetworkCosts(
            {each: InNetwork(us, us, us) for each, us in in_network if each in outcomes}
        )
        placed = replace(
            self.compilation, offers=offers, outcomes=outcomes, epsilon_us=known.shown.epsilon_us
        )

        def launches(bare: Plan) -> Assembled:
            executable = self._bench.assembler.assemble(bare, placed.tunings)
            program = executable.program
            return Assembled(program.ordered.dag, executable.launches, program.on_gpu)

        plan = reading.plan(known.plan, launches)
        if not {plan.label, known.shown.baseline or plan.label} <= known.shown.timings.keys():
            raise ValueError(f"{plan.label} has no time")
        candidates = candidates_in(context, placed, corrections.measured(outcomes))
        mix = plan.placement if len(plan.placement.candidates) > 1 else None
        proposal = Proposal(plan.placement, mix, tuple(candidates), corrections=corrections)
        return (
            replace(placed, proposal=proposal, plans=(plan,)),
            plan,
            [*self._considered(reading)],
        )

    def _considered(self, reading: Reading) -> Iterator[Considered]:
        """What is known of the candidates that other passes measured."""
        asked = [(reading.request(named), why, alone) for named, why, alone in self.known.considered]
        measurer = self._bench.measurer
        for single in (False, True):
            own = measurer.on_threads(1) if single else measurer
            outcomes = own.known([request for request, _, alone in asked if alone == single])
            for request, why, alone in asked:
                outcome = outcomes.get(request) if alone == single else None
                if isinstance(outcome, Measurement) and request.original:
                    outcome = with_floor(outcome)
                if outcome is not None:
                    yield Considered(request, why, outcome, single_threaded=single)

    def _selected(self, executable: Executable, placed: Compilation) -> Selection:
        """The executable, checked and loaded. Raises what ``result`` does."""
        bench, shown = self._bench, self.known.shown
        if times_alone_us(bench, executable) != self.known.kernels_us:
            raise OutOfDateError("a kernel was measured again, rejected or disturbed")
        bench.runs.failures.refuse_dropped(executable)
        self.context.progress(Progress("check", 0, 1))
        right, finding = bench.checked(executable, placed.tunings)
        if complaint := finding.complaint or beyond(self.context, bench, right):
            raise OutOfDateError(complaint)
        raced = {label: Raced(timing) for label, timing in shown.timings.items()}
        raced[right.label] = Raced(shown.timings[right.label], shown.launches_us)
        selected = selection_of(bench, right, finding, raced, on_samples(self.context, bench, right))
        self.context.progress(Progress("check", 1, 1))
        return replace(selected, predicted_us=shown.predicted_us)
