"""The task of a compile: what is compiled, with what, for which machine. It does not change."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import onnx

from collage.backends.base import Backend, BackendKind
from collage.backends.registry import Registry
from collage.backends.source_digest import keyed_versions
from collage.check.accuracy import MADE_UP, MADE_UP_QUICK, Asked
from collage.compiler.options import CompileOptions
from collage.frontend.original import AsLoaded
from collage.frontend.read.load import ModelSource
from collage.frontend.read.shapes import Shapes
from collage.graph.storage import CUDA
from collage.kernel.options import BuildOptions
from collage.kernel.target import Target
from collage.measure.timing.effort import QUICK


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
