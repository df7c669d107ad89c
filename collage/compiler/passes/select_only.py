"""SelectOnly: a quick compile has one placement, which is timed by itself. Its outputs are checked as always."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from collage.compiler.beyond import beyond, on_samples
from collage.compiler.events import Noted
from collage.compiler.executable import Executable
from collage.compiler.final_check import Finding
from collage.compiler.plan import FLOAT32, QUICK, Plan
from collage.compiler.plan_failures import PlanDroppedError
from collage.compiler.plan_runs import Race
from collage.compiler.selection import Selection
from collage.compiler.state import Compilation, Context
from collage.compiler.workbench import Workbench
from collage.errors import NoPlacementError
from collage.measure_db.results import Timing
from collage.search.errors import of_outputs

_NOTE = "a quick compile: few candidates, few samples, no comparison of whole networks"


@dataclass(frozen=True)
class SelectOnly:
    """Runs the placement, checks it with ONNX Runtime, and selects it. The log gets the ``note``.

    A placement of reduced precision runs against the one in float32, which is selected where it is not slower, and
    launches on a GPU run on one stream and on several. Early plans take part, too, and are all that there is where
    nothing was placed.
    """

    note: str = _NOTE

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Sets the selection. Raises KernelRejectedError, and NoPlacementError where the outputs are wrong."""
        bench = context.workbench(compilation)
        right: list[tuple[Executable, Finding]] = []
        problems: list[NoPlacementError] = []
        for plan in [*_placed(compilation), *compilation.early]:
            try:
                right.append(self._checked(context, bench, plan))
            except NoPlacementError as error:
                problems.append(error)
        if not right:
            raise problems[0]
        right, timings = self._timed(context, bench, right)
        executable, finding = min(right, key=lambda each: _rank(each[0], timings))
        try:
            parts, executor = bench.runs.load(executable, bench.assembler)
        except PlanDroppedError as dropped:
            raise NoPlacementError(f"the placement {dropped}") from dropped
        plan, us = executable.plan, timings[executable.label].median_us
        context.course.improved(plan.label, us, None)
        selected = Selection(
            label=plan.label,
            parts=parts,
            executor=executor,
            timings=timings,
            measured_us=us,
            predicted_us=plan.placement.predicted_us,
            max_abs_error=finding.absolute,
            relative_error=finding.relative,
            predicted_error=of_outputs(plan.placement.error),
            error=on_samples(context, bench, executable),
            schedule=plan.algorithm,
        )
        told = [Noted(self.note), *(Noted(f"{error}; not used") for error in problems)]
        return replace(compilation, selected=selected, plans=(plan,)).told(*told)

    def _checked(self, context: Context, bench: Workbench, plan: Plan) -> tuple[Executable, Finding]:
        """The plan, which is right. Raises KernelRejectedError, and NoPlacementError where it fails or is wrong."""
        try:
            executable, finding = bench.checked(bench.assembler.assemble(plan, {}), {})
            beyond_tolerance = beyond(context, bench, executable)
        except PlanDroppedError as dropped:
            raise NoPlacementError(f"the placement {dropped}") from dropped
        if finding.complaint:
            raise NoPlacementError(f"the {finding.complaint}")
        if beyond_tolerance:
            raise NoPlacementError(f"the placement has {beyond_tolerance}")
        return executable, finding

    def _timed(
        self, context: Context, bench: Workbench, right: Sequence[tuple[Executable, Finding]]
    ) -> tuple[list[tuple[Executable, Finding]], Mapping[str, Timing]]:
        """The executables that do not fail while they are timed, as on a GPU without memory for all, and their times.

        Raises KernelRejectedError, and NoPlacementError where the last one fails.
        """
        left = [*right]
        while True:
            try:
                return left, self._timings(context, bench, [executable for executable, _ in left])
            except PlanDroppedError as dropped:
                left = [each for each in left if each[0].label != dropped.label]
                if not left:
                    raise NoPlacementError(f"the placement {dropped}") from dropped

    def _timings(
        self, context: Context, bench: Workbench, executables: Sequence[Executable]
    ) -> Mapping[str, Timing]:
        """The time of one by itself, or of several in one run."""
        effort = context.options.effort
        if len(executables) > 1:
            raced = bench.runs.race(executables, Race(effort))
            return {label: each.timing for label, each in raced.items()}
        (only,) = executables
        return {only.label: bench.runs.timing(only, effort.kernel_s)}


def _rank(executable: Executable, timings: Mapping[str, Timing]) -> tuple[float, bool]:
    """What puts the best executable first: its time. Noise does not decide for reduced precision."""
    timing = timings[executable.label]
    return timing.median_us + (timing.noise_us if executable.reduced else 0.0), executable.reduced


def _placed(compilation: Compilation) -> list[Plan]:
    """The placement as a plan; the one in float32 where it is of reduced precision; one on streams of a GPU."""
    if compilation.proposal is None and compilation.early:
        return []
    placement = compilation.placed.placement
    found = [Plan(QUICK, placement, exclusive=len(placement.candidates) == 1)]
    if any(candidate.variant.precision for candidate in placement.candidates):
        found += [plan for plan in compilation.plans if plan.label == FLOAT32]
    return [*found, *[plan for plan in compilation.plans if plan.streams][-1:]]
