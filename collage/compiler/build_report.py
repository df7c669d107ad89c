"""The report of a compile, which is built once, from its state and its log."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import onnx

from collage.backends.base import VIEW
from collage.compiler.accuracy import Asked
from collage.compiler.events import (
    Bounded,
    Considered,
    Event,
    Evolved,
    Failed,
    Measured,
    Noted,
    Profiled,
    Searched,
    TriedEngine,
)
from collage.compiler.share import whole_s
from collage.compiler.state import Compilation, Context
from collage.frontend.read.shapes import fixed_inputs
from collage.measure.worker.protocol import CandidateRequest
from collage.measure_db.results import Measurement, Outcome, Slower
from collage.report.best_so_far import BUDGET, FAILURE, INTERRUPT
from collage.report.report import CandidateReport, ErrorReport, NodeReport, Report, figures

_UNTRIED = {
    BUDGET: "the budget was over before our own placements of reduced precision were tried",
    INTERRUPT: "the compile was interrupted before our own placements of reduced precision were tried",
    FAILURE: "measuring failed before our own placements of reduced precision were tried",
}
"""Why errors are not known, by what has ended the compile."""
_MOST_NAMES = 5
_UNPLACED = "the model is not placed, so that an engine runs it in float32"


def report_of(context: Context, compilation: Compilation, started: float) -> Report:
    """The report of a compile that has ended; ``started`` is the ``time.perf_counter()`` at its start."""
    selected, log = compilation.result, compilation.log
    program = selected.parts.program
    fixed = tuple(fixed_inputs(compilation.source.original))
    evolved = [event.report for event in log if isinstance(event, Evolved)]
    return Report(
        model=compilation.source.name,
        target=str(context.target),
        threads=context.target.threads,
        predicted_us=selected.predicted_us,
        measured_us=selected.measured_us,
        max_abs_error=selected.max_abs_error,
        relative_error=selected.relative_error,
        measurements_made=sum(event.count for event in log if isinstance(event, Measured)),
        search_s=math.fsum(event.seconds for event in log if isinstance(event, Searched)),
        compile_s=time.perf_counter() - started,
        epsilon_us=compilation.epsilon_us,
        versions=dict(context.versions),
        finalists=figures(selected.timings),
        opaque=_opaque(compilation),
        notes=(
            *_about_fixed(fixed),
            *(event.text for event in log if isinstance(event, (Noted, Failed))),
        ),
        nodes=tuple(_nodes(compilation)),
        candidates=tuple(_candidates(compilation, context.target.threads)),
        arena_bytes=program.memory.nbytes,
        arena_lower_bound_bytes=program.memory.lower_bound,
        value_bytes=program.value_bytes,
        schedule=selected.schedule,
        graph_level=evolved[-1] if evolved else None,
        unmeasured=selected.unmeasured,
        best_so_far=tuple(context.course.best),
        ended=context.course.ended,
        budget_s=whole_s(context.options.budget_s),
        spent_s=_spent(log),
        errors=_errors(context, compilation),
        fixed=fixed,
    )


def _about_fixed(names: Sequence[str]) -> Iterator[str]:
    if names:
        listing = ", ".join(names[:_MOST_NAMES])
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        yield f"overridable initializers are no inputs here, but fixed to their values in the file: {listing}{more}"


def _errors(context: Context, compilation: Compilation) -> ErrorReport | None:
    """What became of the tolerance, or None without one."""
    asked, selected = Asked.by(context.options, compilation.source.samples), compilation.result
    if asked is None:
        return None
    found = ErrorReport(asked.tolerance, asked.metric.name, asked.about)
    told = [event for event in compilation.log if isinstance(event, Bounded)]
    for event in told[-1:]:
        found = replace(found, own=event.own, rounds=event.rounds, reason=event.reason)
    if not told:
        found = replace(found, reason=_UNTRIED.get(context.course.ended, _UNPLACED))
    return replace(found, predicted=selected.predicted_error, measured=selected.error)


def _spent(log: Sequence[Event]) -> dict[str, float]:
    """The seconds that the workers have spent, by kind of work, most first."""
    found: Counter[str] = Counter()
    for event in log:
        if isinstance(event, Profiled):
            found.update(event.seconds)
    return {what: round(seconds, 3) for what, seconds in found.most_common()}


def _opaque(compilation: Compilation) -> dict[str, str]:
    if compilation.model is None:
        return {}
    nodes = compilation.model.onnx.graph.node
    return {nodes[i].name: f"{nodes[i].op_type}: {why}" for i, why in compilation.model.opaque.items()}


def _nodes(compilation: Compilation) -> Iterator[NodeReport]:
    """The operators of the graph, then the ONNX nodes that an engine runs after them."""
    if compilation.model is not None:
        nodes = compilation.model.onnx.graph.node
        for each in compilation.model.graph.nodes:
            known = each.source >= 0
            source = nodes[each.source] if known else onnx.NodeProto()
            yield NodeReport(each.op, source.name, source.op_type)
    if compilation.on_engine is not None:
        for node in compilation.on_engine.graph.node:
            yield NodeReport(f"onnx.{node.op_type}", node.name, node.op_type)


def _candidates(compilation: Compilation, threads: int) -> Iterator[CandidateReport]:
    """All candidates: views, measured offers, rejected matches, and those that passes tried in addition.

    All of them are built for ``threads`` threads, except for single-threaded ones.
    """
    if compilation.proposal is not None:
        patterns = {(view.nodes, view.backend): view.pattern for view in compilation.views}
        for c in compilation.proposal.candidates:
            if c.backend == VIEW:
                about = c.nodes, c.backend, patterns[c.nodes, c.backend], c.variant.layout
                yield CandidateReport(*about, cost_us=0.0, noise_us=0.0, threads=threads)
        in_network = compilation.proposal.corrections.kernels
        for offer in compilation.offers:
            found = _candidate(offer.request, offer.pattern, compilation.outcomes.get(offer.request))
            timed = in_network.get(offer.request) if found.cost_us is not None else None
            yield replace(found, threads=threads, in_network_us=None if timed is None else timed.us)
    for each in compilation.refused:
        yield CandidateReport(each.nodes, each.backend, each.pattern, reason=f"no match: {each.reason}")
    # A request that several passes have considered is told once, with what came of it at last.
    considered = {
        (event.request, event.single_threaded): event
        for event in compilation.log
        if isinstance(event, Considered)
    }
    for last in considered.values():
        found = _candidate(last.request, last.purpose, last.outcome)
        yield replace(found, threads=1 if last.single_threaded else threads)
    for event in compilation.log:
        if isinstance(event, TriedEngine):
            yield replace(_on_engine(event), threads=threads)


def _candidate(request: CandidateRequest, pattern: str, outcome: Outcome | None) -> CandidateReport:
    variant = request.variant
    found = CandidateReport(
        request.nodes,
        request.backend,
        pattern,
        variant.layout,
        variant.split,
        original=request.original,
        profile=request.profile,
        precision=variant.precision,
    )
    if isinstance(outcome, Measurement):
        return replace(
            found,
            cost_us=outcome.median_us,
            noise_us=outcome.noise_us,
            finite_only=outcome.finite_only,
        )
    if outcome is None:
        return replace(found, verdict="not measured: known times ruled it out, or the compile was stopped")
    if isinstance(outcome, Slower):
        return replace(found, least_us=outcome.least_us, verdict=str(outcome))
    return replace(found, reason=f"{outcome.kind.value}: {outcome.message}")


def _on_engine(event: TriedEngine) -> CandidateReport:
    about = event.nodes, event.engine, "whole model"
    if event.timing is None:
        return CandidateReport(*about, reason=event.reason)
    return CandidateReport(*about, cost_us=event.timing.median_us, noise_us=event.timing.noise_us)
