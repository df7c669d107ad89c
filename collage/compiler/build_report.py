"""The report of a compile, which is built once, from its state and its log."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from collage.backends.base import VIEW
from collage.compiler.bench import Bench
from collage.compiler.best import Best
from collage.compiler.placing import usable
from collage.compiler.plan import SEQUENTIAL, WRITTEN, Placed, Plan, Selection, Whole
from collage.frontend.read.rows import column_names, predictions
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
_UNPLACED = "the model is not placed, so that an engine runs it in float32"


def report_of(bench: Bench, best: Best, selected: Selection, started: float) -> Report:
    """The report of a compile that has ended; ``started`` is the ``time.perf_counter()`` at its start."""
    task, known = bench.task, bench.known
    program = selected.parts.program
    fixed = tuple(fixed_inputs(task.source.original))
    plan = selected.plan
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
        opaque=_opaque(bench),
        notes=(*_about_fixed(fixed), *_why_whole(bench, best, plan), *known.told),
        nodes=tuple(bench.nodes),
        candidates=tuple(_candidates(bench)),
        arena_bytes=program.memory.nbytes,
        arena_lower_bound_bytes=program.memory.lower_bound,
        value_bytes=program.value_bytes,
        schedule=plan.algorithm if isinstance(plan, Placed) else SEQUENTIAL,
        graph_level=known.graph_level,
        unmeasured=selected.unmeasured,
        best_so_far=tuple(best.trace),
        first_mix=best.first_mix,
        ended=bench.clock.ended,
        budget_s=None if bench.clock.budget is None else bench.clock.budget.whole_s,
        spent_s=dict(sorted(bench.spent_s.items(), key=lambda item: -item[1])),
        errors=_errors(bench, selected),
        fixed=fixed,
        predictions=predictions(task.source.original),
        columns=column_names(task.source.original),
        rows=task.source.rows,
        one_row_us=selected.by_row[plan.label].median_us if plan.label in selected.by_row else None,
        one_row=figures(selected.by_row),
    )


def _why_whole(bench: Bench, best: Best, plan: Plan) -> Iterator[str]:
    """Why an engine runs the model whole, if one does."""
    if not isinstance(plan, Whole):
        return
    problem = bench.why_no_graph or bench.known.no_placement
    if bench.clock.ended != FINISHED:
        reason = f"{_STOPPED[bench.clock.ended]} a placement was known to be faster."
    elif problem is not None:
        reason = str(problem)
    else:
        reason = "no mix is faster by more than the noise."
    yield f"{plan.engine} runs the model whole: {reason}"
    if problem is not None and bench.task.options.tolerance:
        yield "the model is not placed, so that the tolerance is not used"


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


def _candidates(bench: Bench) -> Iterator[CandidateReport]:
    """All candidates: views, measured offers, rejected matches, those that were tried in addition, and engines.

    All of them are built for the compile's threads, except for single-threaded ones. Without a graph, only engines are
    told of.
    """
    threads, known = bench.task.target.threads, bench.known
    if bench.is_matched:
        patterns = {view.nodes: view.pattern for view in known.views}
        views = ((c.nodes, VIEW, patterns[c.nodes], c.variant.layout) for c in usable(bench) if c.backend == VIEW)
        for viewed in dict.fromkeys(views):
            yield CandidateReport(*viewed, cost_us=0.0, noise_us=0.0, threads=threads)
        in_network = known.costs.kernels
        for offer in known.offers:
            found = _candidate(offer.request, offer.pattern, known.outcomes.get(offer.request))
            timed = in_network.get(offer.request) if found.cost_us is not None else None
            yield replace(found, threads=threads, in_network_us=None if timed is None else timed.us)
        for each in known.refused:
            yield CandidateReport(each.nodes, each.backend, each.pattern, reason=f"no match: {each.reason}")
        for request, (pattern, outcome) in known.single_threaded.items():
            yield replace(_candidate(request, pattern, outcome), threads=1)
    nodes = tuple(range(len(bench.nodes)))
    for plan in (*known.engines_refused, *known.engine_us):
        us = known.engine_us.get(plan)
        yield CandidateReport(
            nodes,
            plan.engine,
            "whole model",
            split=plan.split,
            cost_us=us,
            noise_us=None if us is None else 0.0,
            reason=known.engines_refused.get(plan, "") if us is None else "",
            threads=threads,
            original=plan.form == WRITTEN,
            profile=plan.profile,
            precision=plan.precision,
        )


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
