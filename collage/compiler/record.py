"""Recording what a compile has found, and recalling it, as long as all that it rests on is unchanged."""

from __future__ import annotations

import logging
from dataclasses import replace

from collage.backends.base import VIEW
from collage.compiler.bench import Bench
from collage.compiler.events import Bounded, Evolved, Noted
from collage.compiler.executable import Executable
from collage.compiler.finished import FINISHED, Finished, finished_key
from collage.compiler.finished_plan import Assembled, Naming, Reading, read_variants
from collage.compiler.plan import Placed, Plan, Whole
from collage.compiler.referee import Referee
from collage.compiler.selection import Selection
from collage.graph.storage import FORMATS
from collage.kernel.transform import LayoutTransform
from collage.measure.worker.plan_protocol import PlanKernel
from collage.measure_db.results import Measurement, Rejection, Slower
from collage.search.candidates import Offer

log = logging.getLogger(__name__)

SUGGESTED = ("neighbours on one engine", "beside a kernel that another does faster")
"""The purposes of offers that no pattern has made."""


def look_up(bench: Bench) -> Finished | None:
    """What an earlier compile of the same model has found."""
    key = finished_key(bench)
    return None if key is None else FINISHED.at(key).look_up(bench.database)


def record(bench: Bench, referee: Referee, selected: Selection, *, complete: bool) -> None:
    """Record what the compile has found, unless another compile may find more because memory was short in this one."""
    key = finished_key(bench)
    if key is None or selected.unmeasured:
        return
    known, plan = bench.known, selected.plan
    if complete and known.lack_of_memory():
        complete = False
    naming = Naming()
    kernels_us: tuple[float | None, ...] = ()
    if isinstance(plan, Placed):
        found = times_alone_us(bench, referee.executable(plan))
        if found is None:
            return
        kernels_us = found
    bounded = [event for event in known.log if isinstance(event, Bounded)]
    evolved = [event.report for event in known.log if isinstance(event, Evolved)]
    engines = [label for label in selected.timings if label in bench.whole.found.errors]
    whole = (plan.engine, plan.form, plan.profile, plan.precision) if isinstance(plan, Whole) else None
    finished = Finished(
        complete=complete,
        placed=naming.plan(plan) if isinstance(plan, Placed) else None,
        whole=whole,
        kernels_us=kernels_us,
        timings=selected.timings,
        engine=min(engines, key=lambda label: selected.timings[label].median_us, default=""),
        launches_us=tuple(region.cost_us for region in selected.parts.program.launches),
        predicted_us=selected.predicted_us,
        epsilon_us=known.epsilon_us,
        notes=tuple(event.text for event in known.log if isinstance(event, Noted)),
        bounded=bounded[-1] if bounded else None,
        evolved=evolved[-1] if evolved else None,
        suggested=tuple(
            (naming.request(each.request), each.pattern) for each in known.offers if each.pattern in SUGGESTED
        ),
        variants=(),
    )
    FINISHED.at(key).record(bench.database, replace(finished, variants=naming.variants))


def plan_of(bench: Bench, referee: Referee, finished: Finished) -> Plan | None:
    """The plan of an earlier compile, or None if it does not fit the model, or what it rests on has changed.

    The ledger learns what that compile has measured.
    """
    if finished.whole is not None:
        return Whole(*finished.whole)
    named = finished.placed
    if named is None:
        return None
    try:
        variants = read_variants(finished.variants, (*FORMATS, *bench.task.registry.formats))
        reading = Reading(bench.model, bench.task.backends, bench.task.without_switch, variants)
        bench.known.offer([Offer(reading.request(request), why) for request, why in finished.suggested])

        def launches(bare: Placed) -> Assembled:
            executable = bench.assembler.assemble(bare, bench.known.tunings)
            program = executable.program
            return Assembled(program.ordered.dag, executable.launches, program.on_gpu)

        bench.recall([offer.request for offer in bench.known.offers])
        plan = reading.plan(named, launches)
        if finished.complete and times_alone_us(bench, referee.executable(plan)) != finished.kernels_us:
            raise ValueError("a kernel was measured again, or rejected")
        if any(
            isinstance(each, Rejection)
            for each in bench.runs.measurer.kernels.known(referee.executable(plan).kernels).values()
        ):
            raise ValueError("a kernel was rejected")
    except (LookupError, ValueError) as error:
        log.info("searching again, since an earlier compile is out of date: %s", error)
        return None
    bench.known.epsilon_us = finished.epsilon_us
    return plan


def times_alone_us(bench: Bench, executable: Executable) -> tuple[float | None, ...] | None:
    """The microseconds of each of the executable's kernels by itself, as the database has them; None for a view.

    None if some kernel was not measured, or is rejected. Kernels that lost a race since are measured to the end.
    """
    kernels = bench.measurer.kernels
    for kernel, outcome in kernels.known(executable.kernels).items():
        if isinstance(outcome, Slower) and not isinstance(kernel.what, LayoutTransform):
            bench.measurer.on_threads(kernel.options.threads).measure([kernel.what])
    known = kernels.known(executable.kernels)
    found: list[float | None] = []
    for kernel in executable.kernels:
        time = known.get(kernel)
        if _is_view(kernel):
            found.append(None)
        elif isinstance(time, Measurement):
            found.append(time.median_us)
        else:
            log.info("%s has no time by itself: %s", kernel.what, time)
            return None
    return tuple(found)


def _is_view(kernel: PlanKernel) -> bool:
    return not isinstance(kernel.what, LayoutTransform) and kernel.what.backend == VIEW
