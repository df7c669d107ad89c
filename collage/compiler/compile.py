"""Compiling a model to a module: stages propose plans, the referee runs them, and the best one is handed over."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

from collage.backends.devices import backends_on
from collage.backends.registry import Registry
from collage.cluster.ray_crew import on_cluster
from collage.compiler.bench import Bench
from collage.compiler.best import Best
from collage.compiler.build_report import report_of
from collage.compiler.clock import Clock
from collage.compiler.finish import Finish
from collage.compiler.plan import Selection
from collage.compiler.record import recall, record
from collage.compiler.referee import Referee
from collage.compiler.stages import QUICK_STAGES, USUAL, Stage, run_stages
from collage.compiler.task import CompileOptions, Source, Task
from collage.core.deadline import BudgetOverError
from collage.core.memory import memory_for_worker
from collage.core.printable import printable
from collage.core.progress import Progress
from collage.core.temporary import sweep
from collage.errors import CollageError, DatabaseError, MeasurementError, UsageError
from collage.frontend.original import AsLoaded
from collage.frontend.read.load import ModelSource, load_onnx
from collage.frontend.read.rows import BLOCK_ROWS, take_rows
from collage.frontend.read.shapes import (
    chosen_shapes,
    fix_shapes,
    leave_open,
    model_inputs,
    open_text,
    with_batch,
)
from collage.frontend.read.value_types import check_example_inputs, check_samples, with_shapes_of
from collage.frontend.read.weights import WeightFiles
from collage.frontend.rewrite.ort_shapes import settle_outputs
from collage.graph.storage import CUDA
from collage.kernel.target import Target, cores, host
from collage.measure.machine.gpu_now import gpu_now
from collage.measure.settings import CandidateLimits
from collage.measure.timing.effort import QUICK
from collage.measure.worker.process import Workers
from collage.measure_db.database import Database
from collage.measure_db.doubt import Doubt
from collage.module.module import CompiledModule
from collage.native.kernel_library import kernels_problem
from collage.native.library import core_problem
from collage.report.best_so_far import BUDGET, FAILURE, FINISHED, INTERRUPT

log = logging.getLogger(__name__)

_WHY = {BUDGET: "the budget is over", INTERRUPT: "the compile was interrupted", FAILURE: "measuring failed"}
_INTERRUPTED = "interrupted; handing over the best module so far (Ctrl-C again ends at once)"

T = TypeVar("T")


def compile_model(
    source: ModelSource,
    options: CompileOptions,
    registry: Registry,
    progress: Callable[[Progress], None],
    workers: Workers | None = None,
    name: str = "",
) -> CompiledModule:
    """Compile the model to the fastest mix of the registry's backends.

    A model that has no placement runs on the fastest engine; with ``options.strict`` that is an error. ``workers``
    lends the measuring worker; without it a worker is started and ended here. When the compile is stopped, by its
    budget or by Ctrl-C, it hands over the best module so far; Ctrl-C before there is one raises KeyboardInterrupt.
    Raises ModelError, UsageError, DatabaseError, ClusterError, MeasurementError or, with ``options.strict``,
    NoPlacementError.
    """
    started = time.perf_counter()
    clock = Clock(options.budget)
    _tell_of_missing_code()
    backends = backends_on(options.device, registry, options.backends)
    if strangers := registry.strangers():
        log.warning(
            "patterns or rules are registered for %s, and no backend has that name. Backends are: %s",
            ", ".join(strangers),
            ", ".join(registry.names),
        )
    target = _target(options.threads)
    versions = {name: backend.available().version for name, backend in backends.items()}
    name = name or (printable(Path(source).stem) if isinstance(source, (str, Path)) else "model")

    best = Best(progress, clock)
    best.show(Progress("import", 0, 1, name))
    sweep()
    with ExitStack() as stack:
        files = stack.enter_context(WeightFiles())
        loaded = _loaded(source, options, files, name)
        crews = None
        if options.cluster is not None:
            best.show(Progress("cluster", 0, 1, str(options.cluster)))
            crews = stack.enter_context(on_cluster(options.cluster, backends))
            best.show(Progress("cluster", 1, 1, str(crews.nodes)))
        kept = workers if workers is not None else stack.enter_context(Workers())
        kept.deadline = clock.deadline
        kept.imports = tuple(module for each in backends.values() for module in each.worker_imports)
        database = stack.enter_context(Database(options.db, since=options.since))
        on_gpu = [each for each, backend in backends.items() if backend.device == CUDA]
        memory = partial(memory_for_worker, CandidateLimits().worker_memory())
        database.doubt(Doubt(gpu_now, memory, on_gpu))
        task = Task(loaded, options, registry, backends, versions, target)
        bench = Bench(task, database, kept, clock, best.show, crews)
        try:
            selected = compiled(bench, best)
        finally:
            _close(bench)
        report = report_of(bench, best, selected, started)
    return CompiledModule(selected.parts, report, selected.executor)


def _loaded(source: ModelSource, options: CompileOptions, files: WeightFiles, name: str) -> Source:
    """The model with its shapes fixed. Raises ModelError and UsageError."""
    original = load_onnx(source, files)
    samples = check_samples(original, options.samples)
    example_inputs = samples[0] if samples else check_example_inputs(original, options.inputs)
    if not samples and example_inputs.keys() == {info.name for info in model_inputs(original)}:
        samples = (example_inputs,)
    as_loaded = AsLoaded.of(original)
    shapes = with_batch(original, with_shapes_of(example_inputs, options.shapes), options.batch)
    rows = BLOCK_ROWS if not (shapes or options.strict) and take_rows(original) else 0
    if rows:
        return Source(original, as_loaded, name, example_inputs, samples, source, shapes, rows=rows)
    chosen = chosen_shapes(original, shapes, strict=options.strict)
    about = name, example_inputs, samples, source
    if chosen.sizes:
        leave_open(original)
        log.info("%s stays open: %s", name, open_text(original))
        return Source(original, as_loaded, *about, sizes=chosen.sizes)
    fix_shapes(original, chosen.placed)
    settle_outputs(original)
    return Source(original, as_loaded, *about, chosen.placed, for_one=chosen.for_one)


def compiled(bench: Bench, best: Best) -> Selection:
    """Run the stages, until they end or somebody stops them, and hand over the best plan.

    A full disk, and a database that fails, end the search as Ctrl-C does; the database goes on in memory then.
    Without any engine the budget is exceeded until there is a placement. Raises what ``compile_model`` raises.
    """
    referee = Referee(bench)
    stages = QUICK_STAGES if bench.task.options.effort is QUICK else USUAL
    finish = Finish(bench, referee, best)
    _search(stages, bench, referee, best)
    if best.settled is not None:
        recalled = _at_the_end(partial(finish.recalled, best.settled), bench, finish)
        if recalled is not None:
            return recalled
        best.settled = None
        _search([each for each in stages if each.propose is not recall], bench, referee, best)
    clock = bench.clock
    if best.plan is None and clock.ended != FINISHED:
        clock.without_limit()
        if bench.task.engines and not bench.whole.found.loaded:
            log.warning("%s, and nothing is ready: the compile goes on until there is a module", _WHY[clock.ended])
        run_stages(stages, bench, referee, best, until_first=True)
    selected = _at_the_end(finish.select, bench, finish)
    if clock.ended != FAILURE and (clock.ended == FINISHED or bench.is_matched):
        try:
            record(bench, referee, selected, complete=clock.ended == FINISHED)
        except (BudgetOverError, KeyboardInterrupt, CollageError, OSError) as error:
            log.info("what the compile has found is not recorded: %s", error or "it was stopped")
    return selected


def _search(stages: Sequence[Stage], bench: Bench, referee: Referee, best: Best) -> None:
    """Run the stages. What ends them is raised if there is no plan yet, except for the end of the budget."""
    clock = bench.clock
    try:
        run_stages(stages, bench, referee, best)
        clock.finish()
    except BudgetOverError:
        assert clock.budget is not None
        clock.stop(INTERRUPT if clock.budget.interrupted else BUDGET)
        log.info("the time is over: %s", clock.budget.words)
    except KeyboardInterrupt:
        if best.plan is None:
            raise
        clock.stop(INTERRUPT)
        log.warning(_INTERRUPTED)
    except (MeasurementError, DatabaseError, OSError) as error:
        if best.plan is None:
            raise
        clock.stop(FAILURE)
        log.warning("%s Handing over the best module so far.", _sentence(error))
        if isinstance(error, DatabaseError):
            bench.database.go_on_in_memory()


def _at_the_end(work: Callable[[], T], bench: Bench, finish: Finish) -> T | Selection:
    """The result of work that ends the compile. It begins again after a stop; Ctrl-C again ends it.

    If measuring fails twice, the fastest engine is handed over, which takes neither a worker nor files.
    """
    clock, failed = bench.clock, False
    while True:
        try:
            return work()
        except BudgetOverError:
            clock.without_limit()
        except KeyboardInterrupt:
            if clock.ended == INTERRUPT:
                raise
            clock.stop(INTERRUPT)
            log.warning(_INTERRUPTED)
        except (MeasurementError, DatabaseError, OSError) as error:
            clock.stop(FAILURE)
            if failed:
                engine = finish.engine()
                if engine is None:
                    raise
                log.warning("%s Handing over the fastest engine.", _sentence(error))
                return engine
            failed = True
            log.warning("%s What is measured from now on is not kept.", _sentence(error))
            if isinstance(error, DatabaseError):
                bench.database.go_on_in_memory()


@cache
def _tell_of_missing_code() -> None:
    """Warn, once a process, if native code was not built: the fastest kernels are missing then."""
    if problem := core_problem() or kernels_problem():
        log.warning("%s", problem)


def _close(bench: Bench) -> None:
    """Put the workers away. Ctrl-C meanwhile does not throw away what was found."""
    try:
        bench.close()
    except KeyboardInterrupt:
        log.warning("interrupted while the worker ended; all measurements are kept")
        bench.close()


def _sentence(error: Exception) -> str:
    """The message of a failure, as a whole sentence."""
    if not isinstance(error, OSError):
        return str(error)
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}."


def _target(threads: int | None) -> Target:
    if threads is not None and threads < 1:
        raise UsageError(f"threads must be at least 1, not {threads}.")
    target = host(threads)
    allowed = cores()
    if target.threads > allowed.usable:
        log.warning("%d threads asked for, but this process may use %s", target.threads, allowed)
    return target
