"""Search for schedules of contractions for NVIDIA GPUs with TVM's MetaSchedule.

Each trial is compiled by NVRTC, launched in this process and timed by events, as all kernels are. So a trial that
corrupts the driver's context ends the worker that measures, and its candidate is rejected.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.cost_model import PyCostModel

from collage.backends.base import UnsupportedError
from collage.backends.cuda_kernels.launch import Prepared, StreamLaunches, load_code
from collage.backends.tvm_codegen.lower import LoweredKernel, first_line
from collage.backends.tvm_codegen.traces import GPU
from collage.backends.tvm_codegen.trials import Search, TuningError, record_of
from collage.backends.tvm_codegen.tune import random_values
from collage.backends.tvm_cuda_codegen.nvrtc import compile_cubin
from collage.backends.tvm_cuda_codegen.schedule import cuda_target
from collage.backends.tvm_cuda_codegen.source import cuda_source
from collage.core.cuda_driver import CudaError, CudaMemoryError, lost_context
from collage.graph.dataflow import Array
from collage.graph.storage import CUDA
from collage.kernel.device_array import copy_on, empty_on
from collage.kernel.device_clock import device_clocked

__all__ = ["tune"]

logger = logging.getLogger(__name__)

_LEAST = 4
_SAMPLES = 9
_HOPELESS = 3.0
"""A trial whose second run takes so many times the best one is not timed any further."""


def tune(lowered: LoweredKernel, architecture: str, trials: int, limit_s: float, seed: int = 0) -> str:
    """A record of schedules for the PrimFuncs that hold a contraction, or "" where there is none.

    ``trials`` is for each of them, and ``limit_s`` (seconds) for all together. The same seed gives the same first
    batch. Raises TuningError where no trial runs, UnsupportedError without NVRTC and where there is nothing to try,
    CudaError where the context is lost, and CudaMemoryError where there is no memory for inputs and outputs.
    """
    return record_of(
        lowered, limit_s, lambda func, deadline: _tune_one(func, architecture, trials, deadline, seed)
    )


def _tune_one(func: Any, architecture: str, trials: int, deadline: float, seed: int) -> Any:
    target = cuda_target(architecture)
    bench = _Bench(func, architecture, target)
    search = Search(target, _Chance(seed), GPU, seed, _LEAST)
    best, trace = search.best(func, bench.seconds, trials, deadline)
    if not bench.tried and time.monotonic() < deadline:
        raise UnsupportedError(
            "TVM's search has no schedule that fits a GPU, where there is little to compute"
        )
    if best is None or trace is None:
        raise TuningError(f"none of {bench.tried} trials gave a kernel that runs")
    logger.info("%d trials: %.1f us", bench.tried, best * 1e6)
    return trace


class _Bench:
    """Builds and times scheduled PrimFuncs on the GPU, on the same arguments."""

    def __init__(self, func: Any, architecture: str, target: Any) -> None:
        self._architecture, self._target = architecture, target
        self._arguments: Sequence[Array] = [copy_on(CUDA, each) for each in random_values(func)]
        self._best = float("inf")
        self.tried = 0

    def seconds(self, func: Any) -> float | None:
        """Seconds of a run on the GPU, or None for what TVM, NVRTC or the driver refuses. Raises CudaError."""
        self.tried += 1
        try:
            return self._timed(self._bound(func))
        except (RuntimeError, ValueError, TypeError, CudaMemoryError) as error:
            if isinstance(error, CudaError) and lost_context():
                raise
            logger.debug("trial %d is not run: %s", self.tried, first_line(error))
            return None

    def _bound(self, func: Any) -> StreamLaunches:
        source = cuda_source(func, f"trial_{self.tried}", self._target)
        code = load_code(compile_cubin(source.text, self._architecture))
        between = [empty_on(CUDA, each.shape, each.dtype) for each in source.between]
        arrays = [*self._arguments, *between]
        prepared = [
            Prepared(
                *(code, code.function(each.name), each.grid, each.block),
                tuple(int(arrays[at].ctypes.data) for at in each.takes),
            )
            for each in source.kernels
        ]
        return StreamLaunches(prepared, arrays)

    def _timed(self, launches: StreamLaunches) -> float:
        run = device_clocked(launches)
        run()
        found = run()
        if found < _HOPELESS * self._best:
            found = round(median(run() for _ in range(_SAMPLES)))
            self._best = min(self._best, found)
        return found / 1e9


@derived_object
class _Chance(PyCostModel):  # type: ignore[misc]
    """A cost model that knows nothing, so that schedules are tried in a random order.

    What is told of trials steers the search all the same: it goes on from the fastest ones.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = np.random.default_rng(seed)

    def predict(self, context: Any, candidates: Sequence[Any]) -> Any:
        """A score for each candidate."""
        return self._random.uniform(0.0, 1.0, len(candidates))

    def update(self, context: Any, candidates: Sequence[Any], results: Sequence[Any]) -> None:
        """Learn nothing from these results."""

    def load(self, path: str) -> None:
        """Load nothing, since this model has no state."""

    def save(self, path: str) -> None:
        """Save nothing, since this model has no state."""
