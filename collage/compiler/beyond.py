"""Whether plans of reduced precision keep the user's tolerance on the samples, and as far as these tell on others."""

from __future__ import annotations

from collections.abc import Sequence

from collage.compiler.events import Noted
from collage.compiler.executable import Executable
from collage.compiler.metrics import MetricError
from collage.compiler.plan import Plan
from collage.compiler.plan_failures import PlanDroppedError
from collage.compiler.state import Compilation, Context
from collage.compiler.workbench import Workbench
from collage.errors import ModelError
from collage.measure.timing.effort import QUICK
from collage.report.best_so_far import FINISHED


def beyond(context: Context, bench: Workbench, executable: Executable) -> str:
    """The complaint about an executable of reduced precision whose error is above the tolerance, or "".

    Raises KernelRejectedError and PlanDroppedError where it fails.
    """
    if not executable.reduced:
        return ""
    try:
        error, foreseen = bench.runs.error_and_foreseen(executable, bench.accuracy)
    except (MetricError, ModelError) as raised:
        return str(raised)
    tolerance = context.options.tolerance
    if max(error, foreseen) <= tolerance:
        return ""
    of_others = f", and of {foreseen:.2g} foreseen on other inputs" if error <= tolerance else ""
    return (
        f"an error of {error:.2g} on {bench.accuracy.about}{of_others}, above the tolerance of {tolerance:g}"
    )


def within_tolerance(
    context: Context, compilation: Compilation, plans: Sequence[Plan]
) -> tuple[list[Plan], list[Noted]]:
    """The plans without those of one engine on the whole model in a reduced precision that is beyond the tolerance.

    They may be the fastest by far, and others must not be left out because of them. Notes that the log does not have
    yet say so.
    """
    bench = context.workbench(compilation)
    kept: list[Plan] = []
    notes: list[Noted] = []
    for plan in plans:
        (first, *more) = plan.placement.candidates
        if not more and first.variant.precision:
            executable = bench.assembler.assemble(plan, compilation.tunings)
            try:
                if complaint := beyond(context, bench, executable):
                    notes.append(Noted(f"{plan.label}: {complaint}; not used"))
                    continue
            except PlanDroppedError:
                continue
        kept.append(plan)
    return kept, [note for note in notes if note not in compilation.log]


def on_samples(context: Context, bench: Workbench, executable: Executable) -> float | None:
    """The executable's error on the samples; None without a tolerance, or where the error cannot be told.

    A compile that is quick, or was stopped, has no time to run the samples for what is exact. Raises
    KernelRejectedError and PlanDroppedError where it fails.
    """
    hurried = context.course.ended != FINISHED or context.options.effort is QUICK
    if not context.options.tolerance or (hurried and not executable.reduced and not bench.knows_accuracy):
        return None
    try:
        return bench.runs.error(executable, bench.accuracy)
    except (MetricError, ModelError):
        return None
