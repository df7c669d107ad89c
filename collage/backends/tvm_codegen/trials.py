"""MetaSchedule's search for a schedule of one PrimFunc, for whoever builds and times the trials.

`ms.tune_tir` wants psutil and xgboost, prints to stdout, writes log files and builds every trial in another
process. Here the search strategy is asked for candidates, and they are built and timed in place.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule import _ffi_api

from collage.backends.tvm_codegen.contraction import has_contraction
from collage.backends.tvm_codegen.lower import LoweredKernel
from collage.backends.tvm_codegen.traces import CPU, Device
from collage.backends.tvm_codegen.tuned import RecordError, format_record, plain_trace, tunable_module
from collage.kernel.target import usable_cores

logger = logging.getLogger(__name__)

# TVM's population of 512 over 4 generations takes 10-18 s a batch, this one 1.5, and they find equally good schedules.
_POPULATION = 64
_GENERATIONS = 2
_BATCH = 16


class TuningError(Exception):
    """Raised if no trial gave a kernel that runs."""


def record_of(lowered: LoweredKernel, limit_s: float, tune_one: Callable[[Any, float], Any]) -> str:
    """A record of what `tune_one` finds for each PrimFunc that holds a contraction, or "" if there is none.

    It takes a PrimFunc and a moment of `time.monotonic()`, by which it has to end. All of them have `limit_s` seconds.
    """
    names = [name for name, func in lowered.funcs.items() if has_contraction(func)]
    end = time.monotonic() + limit_s
    record: dict[str, Any] = {}
    for position, name in enumerate(names):
        now = time.monotonic()
        record[name] = tune_one(lowered.funcs[name], now + (end - now) / (len(names) - position))
    return format_record(record)


@dataclass(frozen=True)
class Search:
    """A search for schedules for `target`, guided by a cost `model`. `device` says what its traces may hold.

    The same `seed` gives the same first batch.
    """

    target: Any
    model: Any
    device: Device = CPU
    seed: int = 0
    least: int = _POPULATION // 2
    """Where fewer of the first schedules are usable, there is no search. On a GPU most of those are not."""

    def best(
        self,
        func: Any,
        seconds: Callable[[Any], float | None],
        trials: int,
        deadline: float,
        own: float | None = None,
    ) -> tuple[float | None, Any]:
        """The seconds and the trace, as JSON values, of the fastest of so many trials until `time.monotonic()` is over.

        `seconds` builds and times a scheduled PrimFunc, and returns None for what cannot be built. Where none is faster
        than `own`, or none runs, that comes back with the trace None.
        """
        context = _Context(tunable_module(func), self)
        database = ms.database.MemoryDatabase()
        workload = database.commit_workload(context.mod)
        spaces = [each for each in context.generate_design_space() if not _pipelined(each.trace)]
        context.pre_tuning(trials, min(_BATCH, trials), spaces, database, self.model)
        best, trace = own, None
        while time.monotonic() < deadline:
            candidates = context.generate_measure_candidates()
            if candidates is None:
                break
            results = []
            for candidate in candidates:
                found = None
                if time.monotonic() < deadline:
                    found = seconds(candidate.sch.mod["main"])
                if found is None:
                    results.append(ms.runner.RunnerResult(None, "not run"))
                    continue
                results.append(ms.runner.RunnerResult([found], None))
                database.commit_tuning_record(
                    ms.database.TuningRecord(
                        candidate.sch.trace, workload, [found], self.target, candidate.args_info
                    )
                )
                if best is None or found < best:
                    try:
                        best, trace = found, plain_trace(candidate.sch.trace, self.device)
                    except RecordError as error:  # an instruction that `check_trace` does not know
                        logger.debug("a schedule that could not be built again: %s", error)
            context.notify_runner_results(candidates, results)
        return best, trace


def _pipelined(trace: Any) -> bool:
    """Whether loops are to be software pipelines, with asynchronous copies into a GPU's shared memory.

    TVM's usual lowering makes the commits and waits of such copies, and copies that are not asynchronous.
    """
    return any(
        each.kind.name == "Annotate" and str(each.attrs[0]).startswith("software_pipeline")
        for each in trace.insts
    )


class _Context(ms.TuneContext):  # type: ignore[misc]
    """A TuneContext that logs to our logger, and is made without its Python constructor.

    That one imports `tvm.s_tir.tensor_intrin`: 10 s for intrinsics that these schedules do not use.
    """

    def __init__(self, mod: Any, search: Search) -> None:
        rules = str(search.target.kind.name)
        space = ms.space_generator.PostOrderApply(sch_rules=rules, postprocs=rules, mutator_probs=rules)
        strategy = ms.search_strategy.EvolutionarySearch(
            population_size=_POPULATION, init_min_unmeasured=search.least, genetic_num_iters=_GENERATIONS
        )
        # TVM takes seeds from 1, and -1 for a random one.
        self.__init_handle_by_constructor__(
            *(_ffi_api.TuneContext, mod, search.target, space, strategy, "main"),
            *(usable_cores(), search.seed + 1, _log),
        )
        _ffi_api.TuneContextInitialize(self)


def _log(level: int, filename: str, line: int, message: str) -> None:
    logger.debug("%s:%d: %s", filename, line, message)
