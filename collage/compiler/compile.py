"""Compiling a model to a module: by the pipeline, or on an engine where it finds no placement."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from collage.backends.registry import Registry
from collage.cluster.ray_crew import on_cluster
from collage.compiler.build_report import report_of
from collage.compiler.course import Course
from collage.compiler.devices import backends_on
from collage.compiler.events import Noted
from collage.compiler.lab import WorkerLab
from collage.compiler.options import CompileOptions
from collage.compiler.passes.anytime import Anytime
from collage.compiler.passes.check_indices import CheckIndices
from collage.compiler.passes.dynamic_suffix import DynamicSuffix
from collage.compiler.passes.first_module import FirstModule
from collage.compiler.passes.run_whole import RunWhole
from collage.compiler.passes.settle import Settle
from collage.compiler.pipeline import compiled_anytime
from collage.compiler.state import Compilation, Context, Source
from collage.core.printable import printable
from collage.core.progress import Progress
from collage.core.temporary import sweep
from collage.errors import MeasurementError, ModelError, NoPlacementError, UsageError
from collage.frontend.original import AsLoaded
from collage.frontend.read.load import ModelSource, load_onnx
from collage.frontend.read.shapes import fix_shapes, model_inputs
from collage.frontend.read.value_types import check_example_inputs, check_samples, with_shapes_of
from collage.frontend.read.weights import WeightFiles
from collage.frontend.rewrite.ort_shapes import settle_outputs
from collage.graph.storage import CUDA
from collage.kernel.target import Target, cores, host
from collage.measure.machine.gpu_now import gpu_now
from collage.measure.machine.memory import memory_for_worker
from collage.measure.machine.speeds import machine_speeds
from collage.measure.settings import CandidateLimits
from collage.measure.timing.effort import QUICK
from collage.measure.worker.process import Workers
from collage.measure_db.database import Database
from collage.measure_db.doubt import Doubt
from collage.module.module import CompiledModule

log = logging.getLogger(__name__)


def compile_model(
    source: ModelSource,
    options: CompileOptions,
    registry: Registry,
    progress: Callable[[Progress], None],
    workers: Workers | None = None,
) -> CompiledModule:
    """Compile the model to the fastest mix of the registry's backends.

    A model that has no placement runs on the fastest engine; with ``options.strict`` that is an error. ``workers``
    lends the measuring worker; without it a worker is started and ended here. When the compile is stopped, by its
    budget or by Ctrl-C, it hands over the best module so far; Ctrl-C before there is one raises KeyboardInterrupt.
    Raises ModelError, UsageError, DatabaseError, ClusterError, MeasurementError or, with ``options.strict``,
    NoPlacementError.
    """
    started = time.perf_counter()
    course: Course[Compilation] = Course(progress)
    backends = backends_on(options.device, registry, options.backends)
    if strangers := registry.strangers():
        log.warning(
            "patterns or rules are registered for %s, and no backend has that name. Backends are: %s",
            ", ".join(strangers),
            ", ".join(registry.names),
        )
    target = _target(options.threads)
    versions = {name: backend.available().version for name, backend in backends.items()}
    name = printable(Path(source).stem) if isinstance(source, (str, Path)) else "model"

    progress(Progress("import", 0, 1, name))
    sweep()
    with ExitStack() as stack:
        files = stack.enter_context(WeightFiles())
        original = load_onnx(source, files)
        samples = check_samples(original, options.samples)
        example_inputs = samples[0] if samples else check_example_inputs(original, options.inputs)
        if not samples and example_inputs.keys() == {info.name for info in model_inputs(original)}:
            samples = (example_inputs,)
        loaded = Source(original, AsLoaded.of(original), name, example_inputs, samples)
        shapes = with_shapes_of(example_inputs, options.shapes)
        fix_shapes(original, shapes)
        settle_outputs(original)
        crews = None
        if options.cluster is not None:
            progress(Progress("cluster", 0, 1, str(options.cluster)))
            crews = stack.enter_context(on_cluster(options.cluster, backends))
            progress(Progress("cluster", 1, 1, str(crews.nodes)))
        kept = workers if workers is not None else stack.enter_context(Workers())
        kept.deadline = course.deadline
        kept.imports = tuple(module for each in backends.values() for module in each.worker_imports)
        database = stack.enter_context(Database(options.db, since=options.since))
        database.doubt(
            Doubt(
                gpu_now,
                partial(memory_for_worker, CandidateLimits().worker_memory()),
                [name for name, backend in backends.items() if backend.device == CUDA],
            )
        )
        context = Context(
            registry,
            backends,
            versions,
            target,
            options,
            database,
            kept,
            course.show,
            WorkerLab(),
            course,
            speeds_of=partial(machine_speeds, target, database, kept, options.effort.speeds_s),
            crews=crews,
        )
        start = Compilation(loaded)
        # A quick compile takes no longer than finding a first module, so it has none unless there is a budget.
        if options.effort is not QUICK or options.budget_s is not None:
            start = FirstModule()(context, start)
        try:
            compilation = compiled_anytime(context, start)
        except (ModelError, NoPlacementError, MeasurementError) as error:
            if options.strict:
                raise
            log.info("%s: no placement (%s); trying the engines on the whole model", name, error)
            if options.tolerance:
                start = start.told(Noted("the model is not placed, so that the tolerance is not used"))
            whole = RunWhole(str(error), source, shapes), DynamicSuffix(error), CheckIndices()
            compilation = Anytime(whole, Settle())(context, start)
        report = report_of(context, compilation, started)
    return CompiledModule(compilation.result.parts, report, compilation.result.executor)


def _target(threads: int | None) -> Target:
    if threads is not None and threads < 1:
        raise UsageError(f"threads must be at least 1, not {threads}.")
    target = host(threads)
    allowed = cores()
    if target.threads > allowed.usable:
        log.warning("%d threads asked for, but this process may use %s", target.threads, allowed)
    return target
