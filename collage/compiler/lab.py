"""The lab, which keeps the workbench of the model that is compiled.

There is one workbench at a time, since each has a folder and a worker of its own.
"""

from __future__ import annotations

import logging

import onnx

from collage.compiler.accuracy import Asked
from collage.compiler.assemble import Assembler
from collage.compiler.events import Event, Profiled
from collage.compiler.plan_runs import PlanRuns
from collage.compiler.state import Compilation, Context
from collage.compiler.workbench import Workbench
from collage.frontend.export.to_onnx import ExportError
from collage.frontend.model import Model
from collage.frontend.model_artifacts import fits_an_artifact
from collage.frontend.original import as_region
from collage.frontend.rewrite.branches import taken_branches
from collage.measure.measured_model import MeasuredModel
from collage.measure.measurer import Measurer
from collage.measure.settings import CandidateLimits, MeasureSettings
from collage.measure.timing.effort import QUICK
from collage.measure.worker.session import WorkerSession

log = logging.getLogger(__name__)


class WorkerLab:
    """Makes workbenches whose measurers have a worker process. It must be closed after use."""

    def __init__(self) -> None:
        self._bench: Workbench | None = None
        self._journal: tuple[Event, ...] = ()

    def workbench(self, context: Context, compilation: Compilation) -> Workbench:
        """The workbench of the compilation's model, made on first use. One of another model is put away first."""
        if self._bench is None or self._bench.model is not compilation.imported:
            self._put_away()
            self._bench = _workbench(context, compilation)
        self._bench.assembler.ranges = compilation.ranges
        best_us = 1e3 * context.course.best[-1].latency_ms if context.course.best else 0.0
        self._bench.measurer.network_us = max(best_us, compilation.source.share_us)
        return self._bench

    def close(self) -> tuple[Event, ...]:
        """Give the worker back and remove the folder. Returns the events of all workbenches since the last call."""
        self._put_away()
        journal, self._journal = self._journal, ()
        return journal

    def _put_away(self) -> None:
        bench, self._bench = self._bench, None
        if bench is not None:
            try:
                self._journal += (*bench.journal(), Profiled(bench.measurer.session.spent()))
            finally:  # Ctrl-C while a worker tells what it has spent leaves no process behind
                bench.measurer.close()


def _workbench(context: Context, compilation: Compilation) -> Workbench:
    source, options = compilation.source, context.options
    # A quick compile runs engines on the original model only where they may compute in reduced precisions.
    engines = options.effort is not QUICK or bool(options.tolerance)
    model = compilation.imported
    # Where a branch was chosen, engines get that branch, which is never slower than the model that chooses it.
    original = taken_branches(source.original, source.samples).model if model.assumed else source.original
    measured = MeasuredModel(
        model,
        original=_as_region(original, model) if engines else None,
        as_loaded=source.as_loaded,
        guards=fits_an_artifact(source.original),
        exact=options.exact,
    )
    settings = MeasureSettings(
        context.backends,
        context.keyed_versions,
        context.build,
        context.target.measured_on,
        options.effort,
        CandidateLimits(options.time_limit_s),
    )
    session = WorkerSession(measured, settings, context.workers)
    crew = None if context.crews is None else context.crews.crew(session)
    measurer = Measurer(session, context.database, context.progress, crew=crew)
    assembler = Assembler(measurer, context.backends, context.build, context.target, context.versions)
    runs = PlanRuns(measurer, context.database, context.target, options.seed, context.progress)
    asked = Asked.by(options, source.samples)
    return Workbench(measurer, assembler, runs, source.original, context.course.deadline, asked)


def _as_region(original: onnx.ModelProto, model: Model) -> onnx.ModelProto | None:
    """The original model as a region that is the whole graph, or None where the two do not fit together."""
    try:
        return as_region(original, model)
    except ExportError as error:
        log.info("%s: %s", model.name, error)
        return None
