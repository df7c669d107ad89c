"""The options of a compile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from collage.backends.devices import AUTO
from collage.check.metrics import Metric
from collage.cluster.address import ClusterAddress
from collage.compiler.clock import Budget
from collage.graph.storage import BF16, FP16, INT8, TF32
from collage.kernel.options import DYNAMIC_INT8
from collage.measure.timing.effort import FULL, Effort

REDUCED = frozenset((BF16, INT8, TF32, FP16))
"""The reduced precisions that backends may offer kernels in, where the machine has instructions for them."""
LEAST_IN_8_BITS = 2e-3
"""Rounding to 8 bits is off by up to this share of the largest number, so that no network stays below it."""

_NO_KEY = frozenset("backends shapes threads db budget inputs effort since cluster metric samples".split())
"""Options that do not decide what a compile finds, or of which the key has the essence."""


@dataclass(frozen=True)
class CompileOptions:
    """The options of a compile, one for each of ``collage.compile``'s parameters, which explains them."""

    backends: Sequence[str] | None = None
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    threads: int | None = None
    tune_trials: int = 0
    db: Path | None = None
    seed: int = 0
    time_limit_s: float = 60.0
    streams: bool = True
    graph_level_s: float | None = None
    """Seconds of trials for the graph-level search. None stands for the op level only."""
    budget: Budget | None = None
    """The seconds for the whole compile, or None for as many as it takes."""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    effort: Effort = FULL
    strict: bool = False
    since: float = 0.0
    """A ``time.time()``. Measurements that are older are made again."""
    exact: bool = False
    """Whether only kernels that keep NaN and infinities may be used, and none that reassociates."""
    reassociate: bool = True
    cluster: ClusterAddress | None = None
    tolerance: float = 0.0
    """The largest error of the outputs, by the metric; with 0 kernels compute in the model's own dtypes."""
    eight_bits: bool = True
    """Whether 8 bits may be among the reduced precisions."""
    metric: Metric = field(default_factory=Metric)
    samples: Sequence[Mapping[str, Any]] = ()
    """Several sets of inputs, to measure errors on."""
    device: str = AUTO
    """The device to compute on: AUTO, HOST, or one that some backend computes on."""

    @property
    def key(self) -> tuple[object, ...]:
        """All of these options that decide what a compile finds which ends by itself; the samples count elsewhere."""
        found = [getattr(self, each.name) for each in fields(self) if each.name not in _NO_KEY]
        return (*found, self.effort.name, self.metric.name if self.tolerance else "")

    @property
    def precisions(self) -> frozenset[str]:
        """The reduced precisions that kernels, and engines on whole models, may compute in."""
        if not self.tolerance:
            return frozenset()
        return REDUCED | {DYNAMIC_INT8} if self._may_be_in_8_bits else REDUCED - {INT8}

    @property
    def _may_be_in_8_bits(self) -> bool:
        return self.eight_bits and (self.tolerance >= LEAST_IN_8_BITS or not self.metric.is_max)
