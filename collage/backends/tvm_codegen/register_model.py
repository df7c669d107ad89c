"""A cost model for MetaSchedule that knows one thing: the innermost tile should fill the vector registers.

It needs no training, so it guides the first trials, too. Of 64 random schedules its best 8 hold the fastest one of most
convolutions. Models that learn (ridge, Gaussian process) did worse than none on so few trials.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.cost_model import PyCostModel
from tvm.target import codegen

_LATENCY = 8  # multiply-adds in flight that hide their latency: 4 cycles, 2 a cycle
_JITTER = 0.1  # so that equal tiles are tried in a random order


@derived_object
class RegisterModel(PyCostModel):  # type: ignore[misc]
    """Scores schedules between 0 and 1 by their innermost spatial tile. Higher is better."""

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
