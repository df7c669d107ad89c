"""Recording what a compile has found, and recalling it, as long as all that it rests on is there.

A plan is written as the names of its kernels. Their costs are in the database already.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Generator, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import onnxruntime

from collage.compiler.bench import Bench
from collage.compiler.best import Best
from collage.compiler.executable import Executable
from collage.compiler.placing import transform_costs_us, usable
from collage.compiler.plan import FOLDED, Placed, Plan, Selection, StreamPlan, Verdict, Whole
from collage.compiler.propose.streams import single_threaded
from collage.compiler.referee import Referee
from collage.core.typed import typed
from collage.kernel.options import Variant
from collage.kernel.transform import LayoutTransform
from collage.measure.worker.protocol import CandidateRequest
from collage.measure_db.fingerprint import fingerprint, model_digest
from collage.measure_db.keys import Fact
from collage.measure_db.results import GATE, Rejection, Slower, Timing
from collage.report.report import ErrorReport, GraphLevelReport
from collage.schedule.schedule import TEAM, Schedule, check
from collage.search.candidate import Candidate
from collage.search.candidates import Offer
from collage.search.errors import ErrorBudget
from collage.search.network_costs import InNetwork, NetworkCosts
from collage.search.network_effect import NetworkEffect
from collage.search.placement import finish

log = logging.getLogger(__name__)

EDITION = 5
"""The edition of the search and of these values. Count it up if either changes, and every model is searched again."""
MERGED, BESIDE = "neighbours on one engine", "beside a kernel that another does faster"
GRAPH_LEVEL = "graph level"
SUGGESTED = (MERGED, BESIDE, GRAPH_LEVEL)
"""The purposes of offers that no pattern has made."""

Named: TypeAlias = tuple[tuple[int, ...], str, str]
"""A kernel: its nodes, its backend, and its variant as text."""
NamedEngine: TypeAlias = tuple[str, str, str, str]
"""Engine, form, profile and precision of a plan without a placement."""


@dataclass(frozen=True)
class Finished:
    """What a compile has found.

    - ``complete``: whether it has ended by itself; another compile goes on from the plan if not.
    - ``kernels``, ``suffix``: the placement, and the engine of its suffix.
    - ``streams``: algorithm, order and streams of its schedule.
    - ``kernel_errors``: what each kernel is predicted to add to the error of the outputs (see ``Candidate``).
    - ``whole``: a plan without a placement.
    - ``timings``, ``by_row``: those of the last races by label, in microseconds.
    - ``launches_us``, ``predicted_us``: the times of the plan's launches, and what they add up to.
    - ``errors``: the largest absolute and relative error of the outputs, and the error on samples.
    - ``engines``: the plans without a placement that ran, with their times in microseconds.
    - ``suggested``: offers that no pattern has made, with their purpose.
    - ``in_place``, ``effect``: times of kernels as in ``InNetwork``, and the typical effect of a network.
    """

    complete: bool
    kernels: tuple[Named, ...]
    suffix: str
    streams: tuple[str, tuple[int, ...], tuple[int, ...]] | None
    whole: NamedEngine | None
    timings: Mapping[str, Timing]
    launches_us: tuple[float, ...]
    predicted_us: float
    kernel_errors: tuple[float, ...]
    errors: tuple[float, float, float | None]
    epsilon_us: float
    notes: tuple[str, ...]
    tolerance: ErrorReport | None
    graph_level: GraphLevelReport | None
    engines: tuple[tuple[NamedEngine, float], ...]
    suggested: tuple[tuple[tuple[int, ...], str, str, str], ...]
    by_row: Mapping[str, Timing] = field(default_factory=dict)
    in_place: tuple[tuple[Named, float, float, float], ...] = ()
    effect: NetworkEffect | None = None


FINISHED: Fact[Finished] = Fact("compile", asdict, partial(typed, Finished))


def found_before(bench: Bench) -> Finished | None:
    """What an earlier compile of the same model has found, if ``known.key`` is known."""
    key = bench.known.key
    return None if key is None else FINISHED.at(key).look_up(bench.database)


def record(bench: Bench, referee: Referee, selected: Selection, *, complete: bool) -> None:
    """Record what the compile has found; as not complete if memory was short, since another compile may find more."""
    known, plan = bench.known, selected.plan
    if known.key is None or selected.unmeasured:
        return
    candidates: tuple[Candidate, ...] = ()
    streams = None
    if isinstance(plan, Placed):
        candidates = plan.placement.candidates
        _finish_races(bench, referee.executable(plan))
        if plan.streams is not None:
            streams = plan.algorithm, plan.streams.schedule.order, plan.streams.schedule.streams
    finished = Finished(
        complete=complete and not known.lack_of_memory(),
        kernels=tuple(map(_named, candidates)),
        suffix=plan.suffix if isinstance(plan, Placed) else "",
        streams=streams,
        whole=_named_engine(plan) if isinstance(plan, Whole) else None,
        timings=selected.timings,
        by_row=selected.by_row,
        launches_us=tuple(region.cost_us for region in selected.parts.program.launches),
        predicted_us=selected.predicted_us,
        kernel_errors=tuple(each.error for each in candidates),
        errors=(selected.max_abs_error, selected.relative_error, selected.error),
        epsilon_us=known.epsilon_us,
        notes=known.told,
        tolerance=known.tolerance,
        graph_level=known.graph_level,
        engines=tuple((_named_engine(each), us) for each, us in known.engine_us.items()),
        suggested=tuple(
            (offer.request.nodes, offer.request.backend, offer.request.variant.precision, offer.pattern)
            for offer in known.offers
            if offer.pattern in SUGGESTED
        ),
        in_place=tuple(
            (_named(request), timed.alone_us, timed.us, timed.expected_us)
            for request, timed in known.costs.kernels.items()
        ),
        effect=known.costs.effect,
    )
    FINISHED.at(known.key).record(bench.database, finished)


def _finish_races(bench: Bench, executable: Executable) -> None:
    """Measure kernels of the plan to the end that have lost a race since it ran: a recalled plan has to find them."""
    for kernel, outcome in bench.measurer.kernels.known(executable.kernels).items():
        if isinstance(outcome, Slower) and not isinstance(kernel.what, LayoutTransform):
            bench.measurer.on_threads(kernel.options.threads).measure([kernel.what])


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
        missing = [each.request for each in known.offers if each.request not in known.outcomes]
        known.outcomes.update(bench.measurer.known(missing))
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
    plan = Placed(placement, suffix=finished.suffix)
    if finished.streams is None:
        return plan
    executable = bench.assembler.assemble(plan, bench.known.tunings)
    algorithm, order, streams = finished.streams
    schedule = Schedule(order, streams)
    check(executable.program.ordered.dag, schedule)
    beside = {v for v, s in enumerate(streams) if s != TEAM and not executable.program.on_gpu[v]}
    single = tuple(single_threaded(bench, executable.launches, beside))
    if any(single[v] is None for v in beside):
        raise ValueError("a launch on a stream has no kernel for one thread")
    return replace(plan, streams=StreamPlan(schedule, single, algorithm))


def _costs(bench: Bench, finished: Finished) -> NetworkCosts:
    """The costs of an earlier compile, of kernels that are offered still."""
    assert finished.effect is not None
    offered = {_named(offer.request): offer.request for offer in bench.known.offers}
    timed = {offered[name]: InNetwork(*us) for name, *us in finished.in_place if name in offered}
    return NetworkCosts(timed, {}, finished.effect)


def _named(candidate: Candidate | CandidateRequest) -> Named:
    return candidate.nodes, candidate.backend, repr(candidate.variant)


def _named_engine(plan: Whole) -> NamedEngine:
    return plan.engine, plan.form, plan.profile, plan.precision


def finished_key(bench: Bench) -> str | None:
    """The key of a compile: a digest of all that decides what it finds.

    There is none if the model is too large to be hashed, or the metric is the user's own function. A budget and a
    cluster do not decide what a compile finds that ends by itself, so they are no part of the key.
    """
    task = bench.task
    source, options = task.source, task.options
    if options.metric.own is not None:
        return None
    forms: list[object] = [] if source.family else [bench.whole.form.digest]
    offers: list[str] = []
    if bench.has_graph:
        measurer, model = bench.measurer, bench.model
        if measurer.as_loaded_digest is None:
            return None
        forms += [measurer.as_loaded_digest, fingerprint(model.graph), model_digest(model)]
        forms.append(_digest([source.example_inputs, *([model.assumed] if model.assumed else [])]))
        # The keys of kernels have the backends' settings, and the offers depend on the patterns of the registry.
        offers = [f"{each.request.nodes} {measurer.key(each.request)}" for each in bench.known.offers]
        offers += [f"{each.nodes} view" for each in bench.known.views]
    libraries = (
        EDITION,
        GATE,
        onnxruntime.__version__,
        [*task.keyed_versions.items()],
        str(task.target),
        task.target.measured_on,
        task.target.threads,
    )
    asked = *options.key, _digest(source.samples) if options.tolerance else ""
    hasher = hashlib.sha256(repr((forms, libraries, asked)).encode())
    for text in sorted(offers):
        hasher.update(text.encode())
    return hasher.hexdigest()


def _digest(samples: Iterable[Mapping[str, Any]]) -> str:
    """A hash of the content of arrays by name."""
    hasher = hashlib.sha256()
    for sample in samples:
        hasher.update(f"{len(sample)};".encode())
        for name, given in sorted(sample.items()):
            array = np.asarray(given)
            hasher.update(f"{name} {array.dtype} {array.shape};".encode())
            text = array.dtype.hasobject
            hasher.update(repr(array.tolist()).encode() if text else np.ascontiguousarray(array).tobytes())
    return hasher.hexdigest()


def recall(bench: Bench, best: Best) -> Generator[Plan, Verdict, None]:
    """The plan of an earlier compile of the same model.

    If that ended by itself, nothing is left to try, and the plan is not run again.
    """
    bench.known.key = finished_key(bench)
    finished = found_before(bench)
    if finished is None:
        return
    plan = plan_of(bench, Referee(bench), finished)
    if plan is None:
        return
    if finished.complete:
        bench.known.note(*finished.notes)
        bench.known.engine_us.update((Whole(*named), us) for named, us in finished.engines)
        bench.known.tolerance, bench.known.graph_level = finished.tolerance, finished.graph_level
        timing = finished.timings.get(plan.label)
        best.settle(plan, 0.0 if timing is None else timing.median_us)
        if finished.effect is not None:
            bench.known.costs = _costs(bench, finished)
    else:
        yield plan
