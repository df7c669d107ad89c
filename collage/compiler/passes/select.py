"""Select: the last comparison of all plans in one interleaved run. The winner is checked with ONNX Runtime.

The launches are timed in the same rounds as the whole networks. On a machine that others use, too, times change from
one second to the next by more than the sum of the launches differs from the whole.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from collage.compiler.beyond import beyond, on_samples
from collage.compiler.events import Event, Noted
from collage.compiler.executable import Executable
from collage.compiler.final_check import Finding
from collage.compiler.plan_runs import Race
from collage.compiler.selection import Selection
from collage.compiler.state import Compilation, Context
from collage.compiler.workbench import Workbench
from collage.core.progress import Progress
from collage.errors import NoPlacementError
from collage.measure.timing.interleave import ties
from collage.measure_db.keys import Raced
from collage.measure_db.results import Timing
from collage.schedule.program import Program
from collage.schedule.schedule import makespan_us
from collage.search.errors import of_outputs

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Select:
    """Times the plans in one interleaved run (or recalls it) and selects the best one whose outputs are right.

    Of the plans that tie with the best, the simplest wins (see ``_ranked``). Plans that have failed as a whole are left
    out. A note says so where the launches took longer or shorter than the search predicted, by more than a share of
    ``drift``. ``race`` says how the plans are run; None stands for the
    compile's effort. With ``except_baselines`` nothing is selected unless it beats those in the model's own dtypes.
    """

    drift: float = 0.1
    race: Race | None = None
    except_baselines: bool = False

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Sets the selection.

        Raises NoPlacementError when no plan agrees with ONNX Runtime on the original model. Raises KernelRejectedError
        and PlanDroppedError where a plan fails: then the search has to be repeated.
        """
        bench = context.workbench(compilation)
        executables = [bench.assembler.assemble(plan, compilation.tunings) for plan in compilation.plans]
        reasons = bench.runs.why_dropped(executables)
        notes = [f"{label}: {reason}; not used" for label, reason in reasons.items()]
        usable = [each for each in executables if each.label not in reasons]
        if usable:
            race = self.race or Race(context.options.effort, noted=True, shown=True)
            raced = bench.runs.race(usable, race)
            timings = {label: each.timing for label, each in raced.items()}
            context.progress(Progress("check", 0, 1))
            if self.except_baselines:
                _refuse_baselines(usable, timings)
            for executable in _ranked(usable, timings):
                if self.except_baselines and _is_exact_baseline(executable):
                    break
                right, finding = bench.checked(executable, compilation.tunings)
                complaint = finding.complaint or beyond(context, bench, right)
                if not complaint:
                    selected = selection_of(bench, right, finding, raced, on_samples(context, bench, right))
                    best = min((e for e in usable if e.plan.original), key=_time_in(timings), default=None)
                    engine = None if best is None else (best.label, timings[best.label].median_us)
                    context.course.improved(selected.label, selected.measured_us, engine)
                    context.progress(Progress("check", 1, 1))
                    told: list[Event] = [Noted(text) for text in (*notes, *self._drift(right, selected))]
                    return replace(compilation, selected=selected).told(*told)
                notes.append(f"{executable.label}: {complaint}; not used")
                log.warning("%s", notes[-1])
        raise NoPlacementError(
            "no placement agrees with ONNX Runtime on the original model: " + "; ".join(notes)
        )

    def _drift(self, executable: Executable, selected: Selection) -> list[str]:
        """A note where the launches took another time than the search predicted; otherwise nothing."""
        before, after = executable.predicted_us, selected.predicted_us
        if abs(after - before) <= self.drift * before:
            return []
        return [
            f"the search reckoned with {before:.1f} us; in the last comparison the parts took {after:.1f} us"
        ]


def selection_of(
    bench: Workbench,
    executable: Executable,
    finding: Finding,
    raced: Mapping[str, Raced],
    error: float | None,
) -> Selection:
    """The executable, loaded, with the times of its launches in their places, and its error on samples."""
    parts, executor = bench.runs.load(executable, bench.assembler)
    program, predicted_us = _with_times(executable, raced[executable.label].launches_us)
    return Selection(
        label=executable.label,
        parts=replace(parts, program=program),
        executor=executor,
        timings={label: each.timing for label, each in raced.items()},
        measured_us=raced[executable.label].timing.median_us,
        predicted_us=predicted_us,
        max_abs_error=finding.absolute,
        relative_error=finding.relative,
        predicted_error=of_outputs(executable.plan.placement.error),
        error=error,
        schedule=executable.plan.algorithm,
    )


def _with_times(executable: Executable, times: Sequence[float]) -> tuple[Program, float]:
    """The program with the times of its launches, and the end of its schedule by them, in microseconds.

    Where the times are not known, these are the program as it is and the predicted time.
    """
    program = executable.program
    if len(times) != len(program.launches):
        return program, executable.predicted_us
    found = {region: replace(region, cost_us=us) for region, us in zip(program.launches, times, strict=True)}
    timed = replace(
        program,
        regions=tuple(found.get(each, each) for each in program.regions),
        launches=tuple(found[each] for each in program.launches),
    )
    return timed, makespan_us(program.ordered.dag, program.ordered.schedule, list(times))


def _refuse_baselines(executables: Sequence[Executable], timings: Mapping[str, Timing]) -> None:
    """Raise NoPlacementError where a baseline in the model's own dtypes is the fastest, or ties with it."""
    best = ties(timings)
    for each in executables:
        if _is_exact_baseline(each) and each.label in best:
            raise NoPlacementError(f"nothing is faster than {each.label}")


def _is_exact_baseline(executable: Executable) -> bool:
    return executable.plan.original and not executable.reduced


def _time_in(timings: Mapping[str, Timing]) -> Callable[[Executable], float]:
    return lambda executable: timings[executable.label].median_us


def _ranked(executables: Sequence[Executable], timings: Mapping[str, Timing]) -> list[Executable]:
    """The executables, the best one first. Among those that tie with the best, simpler ones come first.

    One that computes in the model's own dtypes comes before those of reduced precision. An executable is simpler with
    fewer launches, then without concurrent launches, then with the usual settings.
    """
    by_time = sorted(executables, key=lambda each: timings[each.label].median_us)
    alike = ties(timings)
    close = [each for each in by_time if each.label in alike]
    close.sort(
        key=lambda each: (
            each.reduced,
            len(each.program.launches),
            each.concurrent,
            each.tuned,
            timings[each.label].median_us,
        )
    )
    return close + [each for each in by_time if each not in close]
