"""Search for CPU schedules of contractions with TVM's MetaSchedule: trials are built and timed in this process.

`ms.tune_tir` wants psutil and xgboost, prints to stdout, writes log files and builds every trial in another
process. Here the search strategy is asked for candidates, and they are built and timed in place.
"""

from __future__ import annotations

import logging
import math
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule import _ffi_api
from tvm.s_tir.meta_schedule.cost_model import PyCostModel
from tvm.target import codegen

from collage.backends.tvm_codegen.contraction import compute_bound_reason, has_contraction
from collage.backends.tvm_codegen.host import host_target, use_threads
from collage.backends.tvm_codegen.lower import LoweredKernel, first_line
from collage.backends.tvm_codegen.prim_blocks import shape_of
from collage.backends.tvm_codegen.schedule import schedule
from collage.backends.tvm_codegen.tuned import (
    RecordError,
    format_record,
    plain_trace,
    postprocessed,
    tunable_module,
)
from collage.kernel.target import usable_cores

logger = logging.getLogger(__name__)

_LATENCY = 8  # multiply-adds in flight that hide their latency: 4 cycles, 2 a cycle
_JITTER = 0.1  # so that equal tiles are tried in a random order
# TVM's population of 512 over 4 generations takes 10-18 s a batch, this one 1.5, and they find equally good schedules.
_POPULATION = 64
_GENERATIONS = 2
_BATCH = 16
_HOPELESS = 3.0  # a trial whose second run takes so many times the best is not timed any further


class TuningError(Exception):
    """Raised if no trial gave a kernel that runs."""


def tune(lowered: LoweredKernel, threads: int, trials: int, limit_s: float, seed: int = 0) -> str:
    """A record of schedules for the PrimFuncs that hold a contraction, or "" when there is none.

    `trials` is for each of them, `limit_s` (seconds) for all together. The same seed gives the same first batch.
    Raises `TuningError`.
    """
    use_threads(threads)
    names = [name for name, func in lowered.funcs.items() if has_contraction(func)]
    end = time.monotonic() + limit_s
    record: dict[str, Any] = {}
    for position, name in enumerate(names):
        now = time.monotonic()
        deadline = now + (end - now) / (len(names) - position)
        record[name] = _tune_one(lowered.funcs[name], threads, trials, deadline, seed)
    return format_record(record)


def _tune_one(func: Any, threads: int, trials: int, deadline: float, seed: int) -> Any:
    """The best trace as a JSON object, or None when our own schedule is faster."""
    target = host_target(threads)
    bench = _Bench(target, [tvm.runtime.tensor(each) for each in _random_values(func)])
    own = None
    if compute_bound_reason(func) is None:
        own = bench.seconds(schedule(func, threads))
    best, trace = own, None
    model = _RegisterModel(target, str(func.params[-1].dtype), seed)
    context = _Context(tunable_module(func), target, seed)
    database = ms.database.MemoryDatabase()
    workload = database.commit_workload(context.mod)
    context.pre_tuning(trials, min(_BATCH, trials), context.generate_design_space(), database, model)
    while time.monotonic() < deadline:
        candidates = context.generate_measure_candidates()
        if candidates is None:
            break
        results = []
        for candidate in candidates:
            found = None
            if time.monotonic() < deadline:
                found = bench.seconds(postprocessed(candidate.sch.mod["main"], threads))
            if found is None:
                results.append(ms.runner.RunnerResult(None, "not run"))
                continue
            results.append(ms.runner.RunnerResult([found], None))
            database.commit_tuning_record(
                ms.database.TuningRecord(candidate.sch.trace, workload, [found], target, candidate.args_info)
            )
            if best is None or found < best:
                try:
                    best, trace = found, plain_trace(candidate.sch.trace)
                except RecordError as error:  # an instruction that `check_trace` does not know
                    logger.debug("a schedule that could not be built again: %s", error)
        context.notify_runner_results(candidates, results)
    if best is None:
        raise TuningError(f"none of {bench.tried} trials gave a kernel that runs")
    logger.info("%d trials: %.1f us, own schedule %s", bench.tried, best * 1e6, own)
    return trace


class _Context(ms.TuneContext):  # type: ignore[misc]
    """A TuneContext that logs to our logger, and is made without its Python constructor.

    That one imports `tvm.s_tir.tensor_intrin`: 10 s for intrinsics that these schedules do not use.
    """

    def __init__(self, mod: Any, target: Any, seed: int) -> None:
        rules = str(target.kind.name)
        space = ms.space_generator.PostOrderApply(sch_rules=rules, postprocs=rules, mutator_probs=rules)
        strategy = ms.search_strategy.EvolutionarySearch(
            population_size=_POPULATION,
            init_min_unmeasured=_POPULATION // 2,
            genetic_num_iters=_GENERATIONS,
        )
        # TVM takes seeds from 1, and -1 for a random one.
        self.__init_handle_by_constructor__(
            _ffi_api.TuneContext, mod, target, space, strategy, "main", usable_cores(), seed + 1, _log
        )
        _ffi_api.TuneContextInitialize(self)


def _log(level: int, filename: str, line: int, message: str) -> None:
    logger.debug("%s:%d: %s", filename, line, message)


@dataclass
class _Bench:
    """Builds and times PrimFuncs on the same arguments."""

    target: Any
    arguments: Sequence[Any]
    best: float = field(default=float("inf"))
    tried: int = 0

    def seconds(self, func: Any) -> float | None:
        """Seconds of a call, or None for what TVM cannot compile."""
        self.tried += 1
        try:
            module = tvm.tirx.build(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), self.target)
        except (RuntimeError, ValueError, TypeError) as error:
            logger.debug("trial %d does not compile: %s", self.tried, first_line(error))
            return None
        run: Callable[..., None] = module["main"]
        run(*self.arguments)
        start = time.perf_counter()
        run(*self.arguments)
        found = time.perf_counter() - start
        if found < _HOPELESS * self.best:
            timer = module.time_evaluator("main", tvm.cpu(), number=1, repeat=3, min_repeat_ms=10)
            found = min(timer(*self.arguments).results)
        self.best = min(self.best, found)
        return found


def _random_values(func: Any) -> list[Any]:
    """An array for each parameter, in the order of the PrimFunc. Indices are zero."""
    random = np.random.default_rng(0)
    found = []
    for param in func.params:
        dtype = np.dtype(str(param.dtype))
        array = random.standard_normal(shape_of(param))
        found.append((array if dtype.kind == "f" else 0 * array).astype(dtype))
    return found


@derived_object
class _RegisterModel(PyCostModel):  # type: ignore[misc]
    """Scores schedules between 0 and 1 by their innermost spatial tile, which should fill the vector registers.

    It needs no training, so it guides the first trials, too. Of 64 random schedules its best 8 hold the fastest one of
    most convolutions. Models that learn (ridge, Gaussian process) did worse than none on so few trials.
    """

    def __init__(self, target: Any, dtype: str, seed: int) -> None:
        super().__init__()
        bits = int(codegen.llvm_get_vector_width(target))
        self._lanes = max(1, bits // (8 * np.dtype(dtype).itemsize))
        # Some of the 32 or 16 registers hold what is multiplied.
        self._registers = 28 if bits >= 512 or platform.machine() == "aarch64" else 12
        self._random = np.random.default_rng(seed)

    def predict(self, context: Any, candidates: Sequence[Any]) -> Any:
        """A score for each candidate."""
        noise = self._random.uniform(1.0 - _JITTER, 1.0, len(candidates))
        return noise * [self._score(_innermost_tile(each.sch.trace)) for each in candidates]

    def update(self, context: Any, candidates: Sequence[Any], results: Sequence[Any]) -> None:
        """Learn nothing, since this model has no state."""

    def load(self, path: str) -> None:
        """Load nothing, since this model has no state."""

    def save(self, path: str) -> None:
        """Save nothing, since this model has no state."""

    def _score(self, tile: Sequence[int]) -> float:
        if not tile:
            return 1.0
        *rows, extent = tile
        vectors = math.ceil(extent / self._lanes)
        filled = extent / (vectors * self._lanes)
        accumulators = math.prod(rows) * vectors
        busy = math.sqrt(min(1.0, accumulators / _LATENCY))
        return filled * busy * min(1.0, self._registers / accumulators)


def _innermost_tile(trace: Any) -> list[int]:
    """Innermost factors of the spatial axes, which multi-level tiling (SSRSRS) splits in four."""
    tiles = [trace.get_decision(each) for each in trace.insts if each.kind.name == "SamplePerfectTile"]
    return [int(factors[-1]) for factors in tiles if len(factors) == 4]
