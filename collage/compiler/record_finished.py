"""What is recorded of a compile that has ended by itself, in the plain values of ``finished``."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from collage.backends.base import VIEW
from collage.compiler.events import Bounded, Considered, Event, Evolved, Noted
from collage.compiler.executable import Executable
from collage.compiler.finished import Finished, Shown, busy_during
from collage.compiler.finished_plan import Naming
from collage.compiler.plan import Plan
from collage.compiler.selection import Selection
from collage.compiler.state import Compilation
from collage.compiler.workbench import Workbench
from collage.kernel.transform import LayoutTransform
from collage.measure.worker.plan_protocol import PlanKernel
from collage.measure_db.results import Measurement, Slower

log = logging.getLogger(__name__)


def finished_of(bench: Workbench, before: Compilation, found: Compilation) -> Finished | None:
    """What the passes between the two compilations have found.

    Kernels of the selected plan that lost a race after the plan was made are measured to the end for it.

    None where a kernel of the plan has no time by itself in the database all the same, which nothing could be checked
    by. Raises BudgetOverError and MeasurementError.
    """
    selected = found.result
    plan = next((each for each in found.plans if each.label == selected.label), None)
    if plan is None:  # an early plan of reduced precision
        return None
    executable = bench.assembler.assemble(plan, found.tunings)
    _settle_races(bench, executable)
    kernels_us = times_alone_us(bench, executable)
    if kernels_us is None:
        return None
    log_since = found.log[len(before.log) :]
    considered = {
        (event.request, event.single_threaded): event for event in log_since if isinstance(event, Considered)
    }
    naming, offered = Naming(), set(before.offers)
    outcomes = chain(found.outcomes.values(), (each.outcome for each in considered.values()))
    corrections = found.placed.corrections.kernels
    finished = Finished(
        plan=naming.plan(plan),
        kernels_us=kernels_us,
        shown=_shown(found, selected, log_since),
        suggested=tuple(
            (naming.request(each.request), each.pattern) for each in found.offers if each not in offered
        ),
        considered=tuple(
            (naming.request(each.request), each.purpose, each.single_threaded) for each in considered.values()
        ),
        in_network=tuple((naming.request(request), timed.us) for request, timed in corrections.items()),
        variants=(),
        busy=busy_during(outcomes, selected.timings),
    )
    return replace(finished, variants=naming.variants)


def _settle_races(bench: Workbench, executable: Executable) -> None:
    """Measure to the end what lost a race and is part of the executable.

    An early plan has such a kernel where its first time came from a busy machine, and the kernel was raced anew on a
    quiet one. It lost to another by itself, and the network with it was still the fastest.
    """
    known = bench.measurer.kernels.known(executable.kernels)
    for kernel, outcome in known.items():
        if isinstance(outcome, Slower) and not isinstance(kernel.what, LayoutTransform):
            log.info("%s lost a race and is measured to the end", kernel.what)
            bench.measurer.on_threads(kernel.options.threads).measure([kernel.what])


def times_alone_us(bench: Workbench, executable: Executable) -> tuple[float | None, ...] | None:
    """The microseconds of each of the executable's kernels by itself, as the database has them; None for a view.

    None where some kernel was not measured, is doubted or rejected, or is right on other inputs than the plan knows.
    """
    known = bench.measurer.kernels.known(executable.kernels)
    found: list[float | None] = []
    for launch, kernel in zip(executable.launches, executable.kernels, strict=True):
        outcome = known.get(kernel)
        if _is_view(kernel):
            found.append(None)
        elif not isinstance(outcome, Measurement):
            log.info("%s has no time by itself: %s", kernel.what, outcome)
            return None
        elif outcome.finite_only and not getattr(launch, "finite_only", False):
            return None
        else:
            found.append(outcome.median_us)
    return tuple(found)


def _shown(found: Compilation, selected: Selection, log_since: Sequence[Event]) -> Shown:
    bounded = [event for event in log_since if isinstance(event, Bounded)]
    evolved = [event.report for event in log_since if isinstance(event, Evolved)]
    return Shown(
        timings=selected.timings,
        baseline=_baseline(found.plans, selected),
        launches_us=tuple(region.cost_us for region in selected.parts.program.launches),
        predicted_us=selected.predicted_us,
        epsilon_us=found.epsilon_us,
        notes=tuple(event.text for event in log_since if isinstance(event, Noted)),
        bounded=bounded[-1] if bounded else None,
        evolved=evolved[-1] if evolved else None,
    )


def _baseline(plans: Sequence[Plan], selected: Selection) -> str:
    """The label of the fastest engine on the model as its author wrote it, or "" where none was compared."""
    labels = [each.label for each in plans if each.original and each.label in selected.timings]
    return min(labels, key=lambda label: selected.timings[label].median_us, default="")


def _is_view(kernel: PlanKernel) -> bool:
    return not isinstance(kernel.what, LayoutTransform) and kernel.what.backend == VIEW
