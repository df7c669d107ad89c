"""SelectOnly: a quick compile has one placement, which is timed by itself. Its outputs are checked as always."""

from __future__ import annotations

from dataclasses import dataclass, replace

from collage.compiler.events import Noted
from collage.compiler.plan import Plan
from collage.compiler.plan_failures import PlanDroppedError
from collage.compiler.selection import Selection
from collage.compiler.state import Compilation, Context
from collage.errors import NoPlacementError

_LABEL = "quick"
_NOTE = "a quick compile: few candidates, few samples, no comparison of whole networks"


@dataclass(frozen=True)
class SelectOnly:
    """Runs the placement, checks it with ONNX Runtime, and selects it."""

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Sets the selection. Raises KernelRejectedError, and NoPlacementError where the outputs are wrong."""
        bench = context.workbench(compilation)
        placement = compilation.placed.placement
        plan = Plan(_LABEL, placement, exclusive=len(placement.candidates) == 1)
        executable = bench.assembler.assemble(plan, {})
        try:
            executable, finding = bench.checked(executable, {})
            timing = bench.runs.timing(executable, context.options.effort.kernel_s)
            parts, executor = bench.runs.load(executable, bench.assembler)
        except PlanDroppedError as dropped:
            raise NoPlacementError(f"the placement {dropped}") from dropped
        if finding.complaint:
            raise NoPlacementError(f"the {finding.complaint}")
        context.course.improved(_LABEL, timing.median_us, None)
        selected = Selection(
            label=_LABEL,
            parts=parts,
            executor=executor,
            timings={_LABEL: timing},
            measured_us=timing.median_us,
            predicted_us=placement.predicted_us,
            max_abs_error=finding.absolute,
            relative_error=finding.relative,
            schedule=plan.algorithm,
        )
        return replace(compilation, selected=selected, plans=(plan,)).told(Noted(_NOTE))
