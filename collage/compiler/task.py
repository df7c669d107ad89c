"""The task of a compile: what is compiled, with which options, with what, for which machine. It does not change."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx

from collage.backends.base import Backend, BackendKind
from collage.backends.devices import AUTO
from collage.backends.registry import Registry
from collage.backends.source_digest import keyed_versions
from collage.check.accuracy import MADE_UP, MADE_UP_QUICK, Asked
from collage.check.metrics import Metric
from collage.cluster.address import ClusterAddress
from collage.compiler.clock import Budget
from collage.frontend.original import AsLoaded
from collage.frontend.read.load import ModelSource
from collage.frontend.read.shapes import Shapes
from collage.graph.storage import BF16, CUDA, FP16, INT8, TF32
from collage.kernel.options import DYNAMIC_INT8, BuildOptions
from collage.kernel.target import Target
from collage.measure.timing.effort import FULL, QUICK, Effort

REDUCED = frozenset((BF16, INT8, TF32, FP16))
"""The reduced precisions that backends may offer kernels in, where the machine has instructions for them."""
LEAST_IN_8_BITS = 2e-3
"""Rounding to 8 bits is off by up to this share of the largest number, so that no network stays below it."""

_NO_KEY = frozenset("backends batch shapes threads db budget inputs effort since cluster metric samples".split())
"""Options that do not decide what a compile finds, or of which the key has the essence."""


@dataclass(frozen=True)
class CompileOptions:
    """The options of a compile, one for each of ``collage.compile``'s parameters, which explains them."""

    backends: Sequence[str] | None = None
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    batch: int | None = None
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
        in_8_bits = self.eight_bits and (self.tolerance >= LEAST_IN_8_BITS or not self.metric.is_max)
        return REDUCED | {DYNAMIC_INT8} if in_8_bits else REDUCED - {INT8}


@dataclass(frozen=True)
class Source:
    """What is compiled: the model with its shapes fixed, the model as it was loaded, and a name.

    ``example_inputs`` are the user's inputs by name, and ``samples`` several such sets. ``written`` is where the model
    came from, and ``shapes`` are the user's. A ``family`` has other models of this structure, which get the same
    placement with weights of their own: nothing may depend on the numbers inside this one, and no engine runs it whole.
    If the model is a part of something larger, its equal share of that takes ``share_us`` microseconds at least.
    """

    original: onnx.ModelProto
    as_loaded: AsLoaded
    name: str
    example_inputs: Mapping[str, Any] = field(default_factory=dict)
    samples: tuple[Mapping[str, Any], ...] = ()
    written: ModelSource | None = None
    shapes: Shapes = field(default_factory=dict)
    family: bool = False
    share_us: float = 0.0
    rows: int = 0
    """The rows that a model of any number of rows is measured on; 0 if all shapes are fixed."""
    sizes: Shapes = field(default_factory=dict)
    """The shapes that a model is measured on whose inputs stay open."""
    for_one: tuple[str, ...] = ()
    """Inputs whose open first axis is placed for one element, since no other number is given."""


@dataclass(frozen=True)
class Task:
    """A source, and the backends, the machine and the options that it is compiled with.

    ``backends`` are the chosen ones of the registry by name, and ``versions`` their library versions.
    """

    source: Source
    options: CompileOptions
    registry: Registry
    backends: Mapping[str, Backend]
    versions: Mapping[str, str]
    target: Target

    @cached_property
    def halves(self) -> bool:
        """Whether models in float16 are computed in it, as GPUs do: whether a backend for one is among the chosen."""
        return any(each.device == CUDA for each in self.backends.values())

    @cached_property
    def keyed_versions(self) -> Mapping[str, str]:
        """``versions`` as in keys of measurements: those of backends from outside have a digest of their source."""
        return keyed_versions(self.backends, self.versions)

    @property
    def asked(self) -> Asked | None:
        """The error that the user asks for; None without a tolerance. A quick compile makes fewer samples up."""
        options = self.options
        if not options.tolerance:
            return None
        made_up = MADE_UP_QUICK if options.effort is QUICK else MADE_UP
        return Asked(options.tolerance, options.metric, self.source.samples, made_up)

    @property
    def build(self) -> BuildOptions:
        """The build options of kernels."""
        return BuildOptions(
            self.target.threads,
            self.options.tune_trials,
            exact=self.options.exact,
            reassociate=self.options.reassociate,
            precisions=self.options.precisions,
        )

    @cached_property
    def engines(self) -> Mapping[str, Backend]:
        """The graph engines among the backends, by name."""
        return {name: each for name, each in self.backends.items() if each.kind is BackendKind.ENGINE}

    @cached_property
    def on_team(self) -> Collection[str]:
        """Names of the backends whose kernels run on Collage's own team of threads."""
        return {name for name, each in self.backends.items() if each.on_team()}

    @cached_property
    def without_switch(self) -> Collection[str]:
        """Names of the backends whose launches cost no context switch."""
        return {name for name, each in self.backends.items() if not each.pays_switch()}
