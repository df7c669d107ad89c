"""The pipeline: import, match, measure, place, build, compare, check."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import onnx

from collage.backends.base import VIEW, Backend
from collage.backends.onnx_engine import MAX_BYTES
from collage.backends.registry import Registry
from collage.compiler.assemble import Assembler
from collage.compiler.decide import Decider, Decision
from collage.compiler.final_check import FinalCheck
from collage.compiler.index_checks import checking_indices
from collage.compiler.placing import Placer
from collage.compiler.plan_runs import PlanRuns
from collage.compiler.quick import Quick
from collage.compiler.static_part import with_static_part
from collage.compiler.whole import Engines, WholeModel, compile_whole
from collage.core.progress import Progress
from collage.core.temporary import sweep
from collage.errors import CollageError, ModelError, NoPlacementError, UsageError
from collage.frontend.importer import DataDependentError
from collage.frontend.load import ModelSource, as_written, load_onnx
from collage.frontend.model import Model, from_simplified
from collage.frontend.original import AsLoaded, as_region
from collage.frontend.samples import check_samples, shapes_of
from collage.frontend.shapes import fix_shapes
from collage.frontend.simplify import simplify
from collage.frontend.to_onnx import ExportError
from collage.kernel.options import BuildOptions
from collage.kernel.target import Target, cores, host
from collage.measure_db.database import Database
from collage.measure_db.effort import FULL, QUICK, Effort
from collage.measure_db.measurer import Measurer
from collage.measure_db.process import Workers
from collage.measure_db.protocol import Request
from collage.measure_db.results import Measurement, Outcome
from collage.module.module import CompiledModule
from collage.patterns.context import MatchContext
from collage.patterns.match import Match, RejectedMatch, find_matches
from collage.report.report import NodeReport, Report, figures
from collage.search.candidates import offers_of

log = logging.getLogger(__name__)

_TYPICAL_US = 200.0
_TYPICAL_EACH = 4


@dataclass(frozen=True)
class CompileOptions:
    """What a compile is asked for; see ``collage.compile``."""

    backends: Sequence[str] | None = None
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    threads: int | None = None
    tune_trials: int = 0
    db: Path | None = None
    seed: int = 0
    time_limit_s: float = 60.0
    streams: bool = True
    graph_level_s: float | None = None
    """Seconds of trials for the graph-level search; None: op level only."""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    effort: Effort = FULL
    strict: bool = False
    since: float = 0.0
    """What was measured before is measured again; as of ``time.time()``."""
    exact: bool = False


def compile_model(
    source: ModelSource,
    options: CompileOptions,
    registry: Registry,
    progress: Callable[[Progress], None],
    workers: Workers | None = None,
) -> CompiledModule:
    """Compile the model to the fastest mix of the registry's backends, or on the fastest engine what has no placement.

    ``workers`` gives the measuring workers and takes them back. Raises ModelError, UsageError, DatabaseError,
    MeasurementError or, with ``options.strict``, NoPlacementError.
    """
    started = time.perf_counter()
    backends = registry.select(options.backends)
    target = _target(options.threads)
    versions = {name: backend.available().version for name, backend in backends.items()}
    name = Path(source).stem if isinstance(source, (str, Path)) else "model"

    progress(Progress("import", 0, 1, name))
    sweep()
    original = load_onnx(source)
    samples = check_samples(original, options.inputs)
    as_loaded = AsLoaded.of(original)
    shapes = {**shapes_of(samples), **options.shapes}
    fix_shapes(original, shapes)
    with ExitStack() as stack:
        kept = workers if workers is not None else stack.enter_context(Workers())
        job = _Job(
            original, as_loaded, name, samples, backends, versions, target, options, registry, progress, kept
        )
        try:
            return _compile_in_parts(job, started)
        except (ModelError, NoPlacementError) as error:
            if options.strict:
                raise
            problem = error
        log.info("%s: no placement (%s); trying the engines on the whole model", name, problem)
        with Database(options.db, since=options.since) as database:
            engines = Engines(
                backends, versions, target.threads, target.measured_on, database, kept, options.effort,
                options.time_limit_s, progress,
            )  # fmt: skip
            model = WholeModel(original, name, str(problem), engines, target, samples, options.seed)
            whole, form = compile_whole(model, partial(as_written, source), shapes)
            untouched = form.original is not original
            if untouched or not isinstance(problem, DataDependentError) or options.effort is QUICK:
                return checking_indices(whole, form.original)

            def compile_head(head: onnx.ModelProto, given: Mapping[str, Any]) -> CompiledModule:
                of_head = replace(job, original=head, as_loaded=AsLoaded.of(head), samples=given)
                return _compile_in_parts(of_head, time.perf_counter())

            return checking_indices(with_static_part(form, whole, problem, compile_head), original)


@dataclass(frozen=True)
class _Job:
    """A model and all that is asked for."""

    original: onnx.ModelProto
    as_loaded: AsLoaded
    name: str
    samples: Mapping[str, Any]
    backends: Mapping[str, Backend]
    versions: Mapping[str, str]
    target: Target
    options: CompileOptions
    registry: Registry
    progress: Callable[[Progress], None]
    workers: Workers


def _compile_in_parts(job: _Job, started: float) -> CompiledModule:
    original, backends, target = job.original, job.backends, job.target
    versions, options, registry, progress = job.versions, job.options, job.registry, job.progress
    build = BuildOptions(target.threads, options.tune_trials, exact=options.exact)
    model = _imported(job)
    with Database(options.db, since=options.since) as database:
        settings = _Measuring(job, build, database)
        with ExitStack() as stack:
            measurer = _verified(model, settings, stack)
            model = measurer.model
            if options.strict:
                _refuse_opaque(model)
            search_started = time.perf_counter()
            matches, rejected = _match(model, backends, registry, build)
            search_s = time.perf_counter() - search_started
            offers, refused = offers_of(model, matches, backends, build)
            views = [match for match in matches if match.backend == VIEW]
            assembler = Assembler(measurer, backends, build, target, versions)
            runs = PlanRuns(measurer, database, target, options.seed)
            check = cache(partial(FinalCheck.of, original, model, options.seed))
            if options.effort is QUICK:
                quick = Quick(measurer, backends, assembler, runs, check, options.effort.kernel_s)
                epsilon_us = measurer.epsilon_us(())
                verdict, found = quick.place(offers, views, [*rejected, *refused], epsilon_us)
                decision = Decision(verdict, found, None, 0.0)
            else:
                outcomes = measurer.measure([offer.request for offer in offers])
                epsilon_us = measurer.epsilon_us(_typical(outcomes))
                decision = Decider(
                    measurer=measurer,
                    backends=backends,
                    build=build,
                    target=target,
                    assembler=assembler,
                    runs=runs,
                    placer=Placer(
                        measurer, backends, epsilon_us, offers, outcomes, views, [*rejected, *refused]
                    ),
                    matches=matches,
                    check=check,
                    progress=progress,
                    graph_level_s=options.graph_level_s,
                    streams=options.streams,
                    seed=options.seed,
                ).decide()
            made = measurer.measurements_made + runs.made
            if target.threads > 1:
                made += measurer.beside(1).measurements_made
            parts = decision.verdict.winner.parts  # whose artifacts are in the measurer's folder
    report = _report(
        model, target, versions, decision, epsilon_us, made, search_s + decision.search_s,
        time.perf_counter() - started,
    )  # fmt: skip
    return CompiledModule(parts, report, decision.verdict.executor)


def _imported(job: _Job) -> Model:
    """The model, simplified and imported. A fault of ours on the way is a ModelError: engines may take the model."""
    try:
        return from_simplified(simplify(job.original), job.name, samples=job.samples)
    except (CollageError, MemoryError):
        raise
    except Exception as error:  # of the importer's, of onnx's, or one of our own
        text = " ".join(str(error).split())[:400]
        log.warning("%s: the import failed, which is a fault in Collage", job.name, exc_info=True)
        raise ModelError(f"Collage's import fails ({type(error).__name__}: {text}).") from error


@dataclass(frozen=True)
class _Measuring:
    """What every measurer of this compile is made with."""

    job: _Job
    build: BuildOptions
    database: Database

    def measurer(self, model: Model) -> Measurer:
        return Measurer(
            model,
            self.job.backends,
            self.job.versions,
            self.build,
            self.job.target.measured_on,
            self.database,
            time_limit_s=self.job.options.time_limit_s,
            progress=self.job.progress,
            workers=self.job.workers,
            effort=self.job.options.effort,
            original=_as_region(self.job.original, model) if self.job.options.effort is FULL else None,
            guards=self.job.original.ByteSize() < MAX_BYTES,
            as_loaded=self.job.as_loaded.serialised,
        )


def _refuse_opaque(model: Model) -> None:
    """Raise ModelError for nodes that TVM's importer could not convert."""
    if model.opaque:
        nodes = model.onnx.graph.node
        listing = "; ".join(f"{nodes[i].name} ({nodes[i].op_type}): {why}" for i, why in model.opaque.items())
        raise ModelError(
            f"strict: {len(model.opaque)} ONNX nodes are not converted, and only engines run them: {listing}"
        )


def _as_region(original: onnx.ModelProto, model: Model) -> onnx.ModelProto | None:
    """The original in the place of the whole graph, or None where the two do not fit together."""
    try:
        return as_region(original, model)
    except ExportError as error:
        log.info("%s: %s", model.name, error)
        return None


def _verified(model: Model, settings: _Measuring, stack: ExitStack) -> Measurer:
    """A measurer of the model, with the ONNX nodes made opaque that TVM's importer converts wrongly."""
    settings.job.progress(Progress("verify", 0, 1, model.name))
    measurer = stack.enter_context(settings.measurer(model))
    wrong = measurer.verify()
    if not wrong:
        return measurer
    measurer.close()
    opaque = {**model.opaque, **wrong}
    return stack.enter_context(
        settings.measurer(from_simplified(model.onnx, model.name, opaque, model.samples))
    )


def _typical(outcomes: Mapping[Request, Outcome]) -> list[Request]:
    """A few candidates of each backend in turn, to measure the cost of switching between backends with.

    Those whose time is nearest to a typical kernel's: the quickest ones run on one thread, and would not show
    what waking one library's threads after another's costs.
    """
    by_backend: dict[str, list[tuple[float, Request]]] = {}
    for request, outcome in outcomes.items():
        if isinstance(outcome, Measurement) and not outcome.tuning:
            distance = abs(math.log(max(outcome.median_us, 1e-3) / _TYPICAL_US))
            by_backend.setdefault(request.backend, []).append((distance, request))
    nearest = [
        [request for _, request in sorted(each, key=lambda pair: (pair[0], pair[1].nodes))[:_TYPICAL_EACH]]
        for each in by_backend.values()
    ]
    return [request for turn in zip_longest(*nearest) for request in turn if request is not None]


def _target(threads: int | None) -> Target:
    if threads is not None and threads < 1:
        raise UsageError(f"--threads must be at least 1, not {threads}.")
    target = host(threads)
    allowed = cores()
    if target.threads > allowed.usable:
        log.warning("%d threads asked for, but this process may use %s", target.threads, allowed)
    return target


def _match(
    model: Model, backends: Mapping[str, Backend], registry: Registry, build: BuildOptions
) -> tuple[list[Match], list[RejectedMatch]]:
    context = MatchContext(model)
    matches: list[Match] = []
    rejected: list[RejectedMatch] = []
    for name in backends:
        found, refused = find_matches(context, name, registry.sources(name, build))
        matches += found
        if name != VIEW:  # that an operator does work is no news
            rejected += refused
    return matches, rejected


def _report(
    model: Model,
    target: Target,
    versions: Mapping[str, str],
    decision: Decision,
    epsilon_us: float,
    measurements_made: int,
    search_s: float,
    compile_s: float,
) -> Report:
    verdict = decision.verdict
    nodes = model.onnx.graph.node
    memory = verdict.winner.program.memory
    return Report(
        model=model.name,
        target=str(target),
        threads=target.threads,
        predicted_us=verdict.winner.placement.predicted_us,
        measured_us=verdict.timings[verdict.winner.label].median_us,
        max_abs_error=verdict.max_abs_error,
        relative_error=verdict.relative_error,
        measurements_made=measurements_made,
        search_s=search_s,
        compile_s=compile_s,
        epsilon_us=epsilon_us,
        versions=dict(versions),
        finalists=figures(verdict.timings),
        opaque={nodes[i].name: f"{nodes[i].op_type}: {reason}" for i, reason in model.opaque.items()},
        notes=verdict.notes,
        nodes=tuple(
            NodeReport(
                n.op,
                nodes[n.source].name if n.source >= 0 else "",
                nodes[n.source].op_type if n.source >= 0 else "",
            )
            for n in model.graph.nodes
        ),
        candidates=decision.found.reports,
        arena_bytes=memory.nbytes,
        arena_lower_bound_bytes=memory.lower_bound,
        value_bytes=verdict.winner.program.value_bytes,
        schedule=verdict.winner.algorithm,
        graph_level=decision.graph_level,
    )
