"""SelectOnly: a quick compile has one placement, which is timed by itself. Its outputs are checked as always."""

from __future__ import annotations

from dataclasses import dataclass, replace

from collage.compiler.beyond import beyond, on_samples
from collage.compiler.events import Noted
from collage.compiler.executable import Executable
from collage.compiler.final_check import Finding
from collage.compiler.passes.within import FLOAT32
from collage.compiler.plan import QUICK, Plan
from collage.compiler.plan_failures import PlanDroppedError
from collage.compiler.selection import Selection
from collage.compiler.state import Compilation, Context
from collage.compiler.workbench import Workbench
from collage.errors import NoPlacementError
from collage.measure_db.timing import Timing
from collage.search.errors import of_outputs

_NOTE = "a quick compile: few candidates, few samples, no comparison of whole networks"


@dataclass(frozen=True)
class _Ready:
    """An executable that is right, and its time."""

    executable: Executable
    finding: Finding
    timing: Timing


@dataclass(frozen=True)
class SelectOnly:
    """Runs the placement, checks it with ONNX Runtime, and selects it.

    Beside a placement of reduced precision the one in float32 is timed, too, and selected where it is not slower.
    """

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Sets the selection. Raises KernelRejectedError, and NoPlacementError where the outputs are wrong."""
        bench = context.workbench(compilation)
        placement = compilation.placed.placement
        plans = [Plan(QUICK, placement, exclusive=len(placement.candidates) == 1)]
        if any(candidate.variant.precision for candidate in placement.candidates):
            plans += [plan for plan in compilation.plans if plan.label == FLOAT32]
        ready: list[_Ready] = []
        problems: list[NoPlacementError] = []
        for plan in plans:
            try:
                ready.append(self._ready(context, bench, plan))
            except NoPlacementError as error:
                problems.append(error)
        if not ready:
            raise problems[0]
        best = min(ready, key=lambda each: (each.timing.median_us + _doubt_us(each), each.executable.reduced))
        try:
            parts, executor = bench.runs.load(best.executable, bench.assembler)
        except PlanDroppedError as dropped:
            raise NoPlacementError(f"the placement {dropped}") from dropped
        plan = best.executable.plan
        context.course.improved(plan.label, best.timing.median_us, None)
        selected = Selection(
            label=plan.label,
            parts=parts,
            executor=executor,
            timings={each.executable.label: each.timing for each in ready},
            measured_us=best.timing.median_us,
            predicted_us=plan.placement.predicted_us,
            max_abs_error=best.finding.absolute,
            relative_error=best.finding.relative,
            predicted_error=of_outputs(plan.placement.error),
            error=on_samples(context, bench, best.executable),
            schedule=plan.algorithm,
        )
        told = [Noted(_NOTE), *(Noted(f"{error}; float32 remains") for error in problems)]
        return replace(compilation, selected=selected, plans=(plan,)).told(*told)

    def _ready(self, context: Context, bench: Workbench, plan: Plan) -> _Ready:
        """The plan, checked and timed. Raises KernelRejectedError, and NoPlacementError where it fails or is wrong."""
        executable = bench.assembler.assemble(plan, {})
        try:
            executable, finding = bench.checked(executable, {})
            timing = bench.runs.timing(executable, context.options.effort.kernel_s)
            beyond_tolerance = beyond(context, bench, executable)
        except PlanDroppedError as dropped:
            raise NoPlacementError(f"the placement {dropped}") from dropped
        if finding.complaint:
            raise NoPlacementError(f"the {finding.complaint}")
        if beyond_tolerance:
            raise NoPlacementError(f"the placement has {beyond_tolerance}")
        return _Ready(executable, finding, timing)


def _doubt_us(each: _Ready) -> float:
    """What is added to a time in reduced precision, so that noise does not decide for it."""
    return each.timing.noise_us if each.executable.reduced else 0.0
