"""The last round: whole modules run against each other and checked against ONNX Runtime on the original.

The parts are timed in the same rounds as the whole: what a machine does that others use, too, changes by more from
one second to the next than the two differ.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from collage.compiler.final_check import FinalCheck, Finding
from collage.compiler.finalist import Finalist, network_key
from collage.compiler.plan_runs import PlanDroppedError, PlanRuns
from collage.core.progress import Progress
from collage.errors import NoPlacementError
from collage.measure_db.effort import FULL
from collage.measure_db.interleave import ties
from collage.measure_db.timing import Timing
from collage.runtime.executor import Executor
from collage.schedule.schedule import makespan_us

log = logging.getLogger(__name__)

_LAUNCHES = "launches_us"
_DRIFT = 0.1
"""Of the sum that the search had: what is off by more is told."""


@dataclass(frozen=True)
class Verdict:
    """The winner with its executor, everybody's timing, and how far the winner's outputs are off."""

    winner: Finalist
    executor: Executor
    timings: Mapping[str, Timing]
    max_abs_error: float
    relative_error: float
    notes: tuple[str, ...] = field(default=())


def choose(
    finalists: Sequence[Finalist],
    runs: PlanRuns,
    check: Callable[[], FinalCheck],
    progress: Callable[[Progress], None],
) -> Verdict:
    """Time the finalists in one interleaved run (or recall it) and hand over the best whose numbers are right.

    Of those that tie with the best the simplest wins (see ``_ranked``). Those that have failed as a whole are left out.
    Raises NoPlacementError when none agrees with ONNX Runtime on the original model. Raises KernelRejectedError and
    PlanDroppedError: then there are other finalists.
    """
    notes: list[str] = []
    usable = [finalist for finalist in finalists if not _dropped(finalist, runs, notes)]
    if usable:
        timings, launches_us = _timings(usable, runs, progress)
        progress(Progress("check", 0, 1))
        for finalist in _ranked(usable, timings):
            right, finding = checked(finalist, runs, check)
            if not finding.complaint:
                winner = _with_times(right, launches_us[finalist.label])
                notes += _drift(right, winner)
                executor = runs.load(right)
                return Verdict(winner, executor, timings, finding.absolute, finding.relative, tuple(notes))
            notes.append(f"{finalist.label}: {finding.complaint}; not used")
            log.warning("%s", notes[-1])
    raise NoPlacementError("no placement agrees with ONNX Runtime on the original model: " + "; ".join(notes))


def checked(finalist: Finalist, runs: PlanRuns, check: Callable[[], FinalCheck]) -> tuple[Finalist, Finding]:
    """The finalist and what the last check finds; guarded at its inputs where it is wrong on unusual ones only."""
    finding = runs.finding(finalist, check)
    if not finding.complaint or finding.ordinary or finalist.guarded is None:
        return finalist, finding
    log.info("%s: %s; its inputs are guarded", finalist.label, finding.complaint)
    guarded = finalist.guarded()
    return guarded, runs.finding(guarded, check)


def _dropped(finalist: Finalist, runs: PlanRuns, notes: list[str]) -> bool:
    """Whether it has failed as a whole before, which ``notes`` are told."""
    try:
        runs.refuse_dropped(finalist)
    except PlanDroppedError as dropped:
        notes.append(f"{finalist.label}: {dropped}; not used")
        return True
    return False


def _timings(
    finalists: Sequence[Finalist], runs: PlanRuns, progress: Callable[[Progress], None]
) -> tuple[dict[str, Timing], dict[str, object]]:
    """Timings, and microseconds of the launches, from the database or from one interleaved run."""
    model, database = runs.measurer.model, runs.database
    keys = {f.label: network_key(f, finalists, model, runs.target) for f in finalists}
    known = {label: database.get_network(key) for label, key in keys.items()}
    timings = {label: timing for label, timing in known.items() if timing is not None}
    launches_us: dict[str, object] = {
        label: database.get_fact(_LAUNCHES, str(key)) for label, key in keys.items()
    }
    if len(timings) == len(finalists):
        return timings, launches_us
    progress(Progress("compare", 0, 1, ", ".join(f.label for f in finalists)))
    raced = runs.compare(finalists, FULL, noted=True)
    with database.together():
        for label, each in raced.items():
            database.put_network(keys[label], each.timing, f"{model.name}: {label}")
            launches_us[label] = noted = [round(us, 3) for us in each.launches_us]
            database.put_fact(_LAUNCHES, str(keys[label]), [*noted])
    return {label: each.timing for label, each in raced.items()}, launches_us


def _drift(finalist: Finalist, winner: Finalist) -> list[str]:
    """A note if the parts took another time than the search reckoned with."""
    before, after = finalist.placement.predicted_us, winner.placement.predicted_us
    if abs(after - before) <= _DRIFT * before:
        return []
    return [f"the search reckoned with {before:.1f} us; in the last comparison the parts took {after:.1f} us"]


def _with_times(finalist: Finalist, launches_us: object) -> Finalist:
    """The finalist with the times that its launches took in their places, where these are known."""
    program = finalist.program
    if not isinstance(launches_us, list) or len(launches_us) != len(program.launches):
        return finalist
    times = [float(each) for each in launches_us]
    found = {region: replace(region, cost_us=us) for region, us in zip(program.launches, times, strict=True)}
    timed = replace(
        program,
        regions=tuple(found.get(each, each) for each in program.regions),
        launches=tuple(found[each] for each in program.launches),
    )
    whole = makespan_us(program.ordered.dag, program.ordered.schedule, times)
    return replace(
        finalist,
        placement=replace(finalist.placement, predicted_us=whole),
        program=timed,
        build=lambda: replace(finalist.parts, program=timed),
    )


def _ranked(finalists: Sequence[Finalist], timings: Mapping[str, Timing]) -> list[Finalist]:
    """The best first; those that tie with it before it when they are simpler.

    Simpler are fewer regions, nothing side by side, and the usual settings.
    """
    by_time = sorted(finalists, key=lambda f: timings[f.label].median_us)
    alike = ties(timings)
    close = [f for f in by_time if f.label in alike]
    close.sort(key=lambda f: (len(f.program.launches), f.side_by_side, f.tuned, timings[f.label].median_us))
    return close + [f for f in by_time if f not in close]
