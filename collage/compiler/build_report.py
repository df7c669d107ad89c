"""The report of a compile, which is built once, from its state and its log."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from collage.backends.base import BUILT_IN, VIEW
from collage.compiler.bench import Bench
from collage.compiler.best import Best
from collage.compiler.placing import usable
from collage.compiler.plan import SEQUENTIAL, WRITTEN, Placed, Plan, Selection, Whole
from collage.compiler.verdicts import Losses
from collage.frontend.read.rows import column_names, label_dtype, predictions
from collage.frontend.read.shapes import fixed_inputs
from collage.measure.worker.protocol import CandidateRequest
from collage.measure_db.results import Measurement, Outcome, Slower
from collage.report.best_so_far import BUDGET, FAILURE, FINISHED, INTERRUPT
from collage.report.report import CandidateReport, ErrorReport, Report, figures

_STOPPED = {
    BUDGET: "the budget was over before",
    INTERRUPT: "the compile was interrupted before",
    FAILURE: "measuring failed before",
}
_MOST_NAMES = 5
_TIE = 1.005
"""Engines that take the module's time but for so much are as fast in words."""
_UNPLACED = "the model is not placed, so that an engine runs it in float32"


def report_of(bench: Bench, best: Best, selected: Selection, started: float) -> Report:
    """The report of a compile that has ended; ``started`` is the ``time.perf_counter()`` at its start."""
    task, known = bench.task, bench.known
    program = selected.parts.program
    fixed = tuple(fixed_inputs(task.source.original))
    plan = selected.plan
    us = best.us(plan)
    factor = selected.measured_us / us if us > 0 and selected.measured_us > 0 else 1.0  # in the last race's moment
    return Report(
        model=task.source.name,
        target=str(task.target),
        threads=task.target.threads,
        predicted_us=selected.predicted_us,
        measured_us=selected.measured_us,
        max_abs_error=selected.max_abs_error,
        relative_error=selected.relative_error,
        measurements_made=bench.measurements,
        search_s=known.search_s,
        compile_s=time.perf_counter() - started,
        epsilon_us=known.epsilon_us,
        versions=dict(task.versions),
        finalists=figures(selected.timings),
        engines=_engines(bench, best, selected),
        runs_on=plan.engine if isinstance(plan, Whole) else "",
        opaque=_opaque(bench),
        notes=(*_about_fixed(fixed), *_about_one(task.source.for_one), *_why_whole(bench, plan), *known.told),
        nodes=tuple(bench.nodes),
        candidates=tuple(_candidates(bench, best, selected)),
        arena_bytes=program.memory.nbytes,
        arena_lower_bound_bytes=program.memory.lower_bound,
        value_bytes=program.value_bytes,
        schedule=plan.algorithm if isinstance(plan, Placed) else SEQUENTIAL,
        graph_level=known.graph_level,
        unmeasured=selected.unmeasured,
        best_so_far=tuple(each.times(factor) for each in best.trace),
        first_mix=best.first_mix and best.first_mix.times(factor),
        ended=bench.clock.ended,
        budget_s=None if bench.clock.budget is None else bench.clock.budget.whole_s,
        spent_s=dict(sorted(bench.spent_s.items(), key=lambda item: -item[1])),
        errors=_errors(bench, selected),
        fixed=fixed,
        predictions=predictions(task.source.original),
        label_dtype=label_dtype(task.source.original),
        columns=column_names(task.source.original),
        rows=task.source.rows,
        for_one=task.source.for_one,
        sizes=task.source.sizes,
        one_row_us=selected.by_row[plan.label].median_us if plan.label in selected.by_row else None,
        one_row=figures(selected.by_row),
    )


def _why_whole(bench: Bench, plan: Plan) -> Iterator[str]:
    """Why an engine runs the model whole, if one does."""
    if not isinstance(plan, Whole):
        return
    problem = bench.why_no_graph or bench.known.no_placement
    if problem is not None:
        reason = str(problem)
    elif bench.clock.ended != FINISHED:
        reason = f"{_STOPPED[bench.clock.ended]} a placement was known to be faster."
    elif bench.task.backends.keys() <= {*bench.task.engines, *BUILT_IN}:
        reason = "only engines were allowed or found."
    else:
        reason = "no mix is faster by more than the noise."
    yield f"{plan.engine} runs the model whole: {reason}"
    if problem is not None and bench.task.options.tolerance:
        yield "the model is not placed, so that the tolerance is not used"


def _about_one(names: Sequence[str]) -> Iterator[str]:
    if names:
        yield (
            f"the first axis of {', '.join(names)} is open in the model, and placed for 1 (--batch N for another "
            "number); other numbers run on ONNX Runtime"
        )


def _about_fixed(names: Sequence[str]) -> Iterator[str]:
    if names:
        listing = ", ".join(names[:_MOST_NAMES])
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        yield f"overridable initializers are no inputs here, but fixed to their values in the file: {listing}{more}"


def _errors(bench: Bench, selected: Selection) -> ErrorReport | None:
    """What became of the tolerance, or None without one."""
    asked = bench.task.asked
    if asked is None:
        return None
    found = bench.known.tolerance
    if found is None:
        stopped = _STOPPED.get(bench.clock.ended)
        reason = _UNPLACED if stopped is None else f"{stopped} our own placements of reduced precision were tried"
        found = ErrorReport(asked.tolerance, asked.metric.name, asked.about, reason=reason)
    predicted = math.hypot(*(each.error for each in selected.parts.program.executed))
    return replace(found, predicted=predicted, measured=selected.error)


def _opaque(bench: Bench) -> dict[str, str]:
    if not bench.is_matched:
        return {}
    nodes = bench.model.onnx.graph.node
    return {nodes[i].name: f"{nodes[i].op_type}: {why}" for i, why in bench.model.opaque.items()}


def _candidates(bench: Bench, best: Best, selected: Selection) -> Iterator[CandidateReport]:
    """All candidates: views, measured offers, rejected matches, those that were tried in addition, and engines.

    All of them are built for the compile's threads, except for single-threaded ones. Without a graph, only engines are
    told of.
    """
    threads, known = bench.task.target.threads, bench.known
    losses = Losses(bench, best, selected.plan)
    if bench.is_matched:
        patterns = {view.nodes: view.pattern for view in known.views}
        views = ((c.nodes, VIEW, patterns[c.nodes], c.variant.layout) for c in usable(bench) if c.backend == VIEW)
        for viewed in dict.fromkeys(views):
            words = "part of a larger kernel instead, or in another layout"
            yield CandidateReport(*viewed, cost_us=0.0, noise_us=0.0, threads=threads, verdict=words)
        in_network = known.costs.kernels
        for offer in known.offers:
            found = _candidate(offer.request, offer.pattern, known.outcomes.get(offer.request))
            timed = in_network.get(offer.request) if found.cost_us is not None else None
            loss = None if found.reason else losses.of(offer.request)
            if loss is not None:
                found = replace(found, verdict=loss.words, loss_us=loss.us)
            yield replace(found, threads=threads, in_network_us=None if timed is None else timed.us)
        for each in known.refused:
            yield CandidateReport(each.nodes, each.backend, each.pattern, reason=f"no match: {each.reason}")
        for request, (pattern, outcome) in known.single_threaded.items():
            found = _candidate(request, pattern, outcome)
            yield replace(found, threads=1, verdict=found.verdict or "to run beside other kernels, on one thread")
    nodes = tuple(range(len(bench.nodes)))
    for plan in dict.fromkeys((*known.engines_refused, *known.engine_us)):
        us = _engine_us(bench, plan, best, selected)
        yield CandidateReport(
            nodes,
            plan.engine,
            "whole model",
            split=plan.split,
            cost_us=known.engine_us.get(plan) if us is None else us,
            noise_us=0.0 if plan in known.engine_us else None,
            reason="" if plan in known.engine_us else known.engines_refused[plan],
            threads=threads,
            original=plan.form == WRITTEN,
            profile=plan.profile,
            precision=plan.precision,
            loss_us=None if us is None else us - selected.measured_us,
            verdict="" if us is None else _beside(us, selected.measured_us),
        )


def _engine_us(bench: Bench, plan: Whole, best: Best, selected: Selection) -> float | None:
    """The engine's microseconds beside the module; None if they are not known.

    It was in the last race, or has a ratio to the module over all races, or ran beside engines of the last race.
    """
    timings, engine_us = selected.timings, bench.known.engine_us
    if plan.label in timings:
        return timings[plan.label].median_us
    its, own = best.score(plan), best.score(selected.plan)
    if 0 < own < math.inf and its < math.inf:
        return selected.measured_us * its / own
    others = [timings[each.label].median_us / us for each, us in engine_us.items() if each.label in timings and us > 0]
    return engine_us[plan] * statistics.median(others) if others and plan in engine_us else None


def _beside(us: float, module_us: float) -> str:
    ratio = us / module_us if module_us > 0 else 1.0
    return f"{ratio:.2f}x the module's time" if ratio >= _TIE else "as fast, within the noise"


def _engines(bench: Bench, best: Best, selected: Selection) -> dict[str, float]:
    """The microseconds of each engine on the whole model, at its best settings, beside the module."""
    found: dict[str, float] = {}
    for plan in bench.known.engine_us:
        us = _engine_us(bench, plan, best, selected)
        if us is not None:
            found[plan.engine] = min(us, found.get(plan.engine, math.inf))
    return dict(sorted(found.items(), key=lambda item: item[1]))


def _candidate(request: CandidateRequest, pattern: str, outcome: Outcome | None) -> CandidateReport:
    variant = request.variant
    found = CandidateReport(
        request.nodes, request.backend, pattern, variant.layout, variant.split, precision=variant.precision
    )
    if isinstance(outcome, Measurement):
        return replace(found, cost_us=outcome.median_us, noise_us=outcome.noise_us, finite_only=outcome.finite_only)
    if outcome is None:
        return replace(found, verdict="not measured: known times ruled it out, or the compile was stopped")
    if isinstance(outcome, Slower):
        return replace(found, least_us=outcome.least_us, verdict=str(outcome))
    return replace(found, reason=f"{outcome.kind.value}: {outcome.message}")
