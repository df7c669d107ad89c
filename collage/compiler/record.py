"""Recording what a compile has found, and recalling it, as long as all that it rests on is unchanged."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import replace

from collage.backends.base import VIEW
from collage.compiler.bench import Bench
from collage.compiler.events import Bounded, Evolved, Noted
from collage.compiler.executable import Executable
from collage.compiler.finished import FINISHED, Finished, Named, NamedStreams, finished_key
from collage.compiler.placing import transform_costs_us, usable
from collage.compiler.plan import FOLDED, Placed, Plan, StreamPlan, Whole
from collage.compiler.propose.single_threaded import Launch, single_threaded_field
from collage.compiler.referee import Referee
from collage.compiler.selection import Selection
from collage.kernel.options import Variant
from collage.kernel.transform import LayoutTransform
from collage.measure.worker.plan_protocol import PlanKernel
from collage.measure.worker.protocol import CandidateRequest
from collage.measure_db.results import Measurement, Rejection, Slower
from collage.schedule.schedule import TEAM, Schedule, check
from collage.search.candidate import Candidate
from collage.search.candidates import Offer
from collage.search.errors import ErrorBudget
from collage.search.placement import finish
from collage.search.transforms import PlacedTransform

log = logging.getLogger(__name__)

SUGGESTED = ("neighbours on one engine", "beside a kernel that another does faster")
"""The purposes of offers that no pattern has made."""


def look_up(bench: Bench) -> Finished | None:
    """What an earlier compile of the same model has found."""
    bench.known.key = key = finished_key(bench)
    return None if key is None else FINISHED.at(key).look_up(bench.database)


def record(bench: Bench, referee: Referee, selected: Selection, *, complete: bool) -> None:
    """Record what the compile has found; as not complete if memory was short, since another compile may find more."""
    known, plan = bench.known, selected.plan
    if known.key is None or selected.unmeasured:
        return
    kernels_us: tuple[float | None, ...] = ()
    if isinstance(plan, Placed):
        found = times_alone_us(bench, referee.executable(plan))
        if found is None:
            return
        kernels_us = found
    placed = plan if isinstance(plan, Placed) else None
    bounded = [event for event in known.log if isinstance(event, Bounded)]
    evolved = [event.report for event in known.log if isinstance(event, Evolved)]
    finished = Finished(
        complete=complete and not known.lack_of_memory(),
        label=plan.label,
        kernels=() if placed is None else tuple(map(_named, placed.placement.candidates)),
        suffix="" if placed is None else placed.suffix,
        streams=None if placed is None or placed.streams is None else _named_streams(placed.streams),
        whole=_named_engine(plan) if isinstance(plan, Whole) else None,
        kernels_us=kernels_us,
        timings=selected.timings,
        launches_us=tuple(region.cost_us for region in selected.parts.program.launches),
        predicted_us=selected.predicted_us,
        kernel_errors=() if placed is None else tuple(each.error for each in placed.placement.candidates),
        errors=(selected.max_abs_error, selected.relative_error, selected.error),
        epsilon_us=known.epsilon_us,
        notes=tuple(event.text for event in known.log if isinstance(event, Noted)),
        bounded=bounded[-1] if bounded else None,
        evolved=evolved[-1] if evolved else None,
        engines=tuple((_named_engine(each), us) for each, us in known.engine_us.items()),
        suggested=tuple(
            (offer.request.nodes, offer.request.backend, offer.request.variant.precision, offer.pattern)
            for offer in known.offers
            if offer.pattern in SUGGESTED
        ),
    )
    FINISHED.at(known.key).record(bench.database, finished)


def plan_of(bench: Bench, referee: Referee, finished: Finished) -> Plan | None:
    """The plan of an earlier compile, or None if it does not fit the model, or what it rests on has changed.

    The ledger learns what that compile has measured.
    """
    known = bench.known
    if bench.is_matched:
        known.epsilon_us = finished.epsilon_us
        known.offer(
            Offer(CandidateRequest(tuple(nodes), backend, Variant(precision=precision)), why)
            for nodes, backend, precision, why in finished.suggested
        )
        bench.recall([offer.request for offer in known.offers])
    if finished.whole is not None:
        whole = Whole(*finished.whole)
        if whole.form == FOLDED and not bench.add_folded():
            return None
        tried = bench.whole.found.errors
        if not whole.precision and whole.label not in tried and not bench.whole.trial([whole]).errors:
            return None
        return whole
    try:
        plan = _placed(bench, finished)
        executable = referee.executable(plan)
        if finished.complete and times_alone_us(bench, executable) != finished.kernels_us:
            raise ValueError("a kernel was measured again, or rejected")
        outcomes = bench.measurer.kernels.known(executable.kernels).values()
        if any(isinstance(each, Rejection) for each in outcomes):
            raise ValueError("a kernel was rejected")
    except (LookupError, ValueError) as error:
        log.info("searching again, since an earlier compile is out of date: %s", error)
        return None
    return plan


def _placed(bench: Bench, finished: Finished) -> Placed:
    """The placement of these kernels, whose costs are known. Raises LookupError and ValueError."""
    budget = ErrorBudget(math.inf) if any(finished.kernel_errors) else None
    candidates = {_named(each): each for each in usable(bench, budget)}
    errors = zip(finished.kernels, finished.kernel_errors, strict=True)
    chosen = [replace(candidates[name], error=error) for name, error in errors]
    costs = transform_costs_us(bench, chosen)
    placement = finish(bench.model.graph, chosen, bench.known.epsilon_us, transforms_us=costs)
    plan = Placed(finished.label, placement, suffix=finished.suffix)
    if finished.streams is None:
        return plan
    executable = bench.assembler.assemble(plan, bench.known.tunings)
    program, named = executable.program, finished.streams
    schedule = Schedule(named.order, named.streams)
    check(program.ordered.dag, schedule)
    alone = {_named(each): each for each in single_threaded_field(bench, executable.launches)}
    pairs = zip(executable.launches, named.single_threaded, strict=True)
    single = tuple(_alone(launch, each, alone) for launch, each in pairs)
    for on_gpu, stream, found in zip(program.on_gpu, schedule.streams, single, strict=True):
        if stream < TEAM or (stream != TEAM and found is None and not on_gpu):
            raise ValueError("a launch on a stream has no kernel for one thread")
    return Placed(finished.label, placement, StreamPlan(schedule, single, named.algorithm), finished.suffix)


def _alone(launch: Launch, named: Named | float | None, alone: Mapping[Named, Candidate]) -> Launch | None:
    """The single-threaded kernel that takes a launch's place. Raises LookupError and ValueError."""
    if named is None:
        return None
    if isinstance(launch, PlacedTransform) and isinstance(named, float):
        return PlacedTransform(launch.value, launch.transform, named)
    if not isinstance(launch, Candidate) or isinstance(named, float):
        raise ValueError("a layout transform stands in the place of a kernel")
    found = alone[named]
    if (found.nodes, found.reads, found.writes) != (launch.nodes, launch.reads, launch.writes):
        raise ValueError(f"the nodes {found.nodes} stand in the place of {launch.nodes}")
    return found


def _named(candidate: Candidate) -> Named:
    return candidate.nodes, candidate.backend, repr(candidate.variant)


def _named_engine(plan: Whole) -> tuple[str, str, str, str]:
    return plan.engine, plan.form, plan.profile, plan.precision


def _named_streams(streams: StreamPlan) -> NamedStreams:
    single = tuple(
        _named(each) if isinstance(each, Candidate) else (None if each is None else each.cost_us)
        for each in streams.single_threaded
    )
    return NamedStreams(streams.algorithm, streams.schedule.order, streams.schedule.streams, single)


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
