"""What the measurer and its worker say to each other, beside ``child_process.Failure``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collage.graph.dataflow import Array
from collage.kernel.options import ALL_PLAIN, BuildOptions, Variant
from collage.kernel.transform import LayoutTransform
from collage.measure_db.effort import Effort
from collage.measure_db.timing import Timing

ORIGINAL_FILE = "original.onnx"
"""In the folder of Init: the model as its author wrote it, with inputs and outputs in the graph's order."""

AS_LOADED = "as_loaded.onnx"
"""In the folder of plans: the model that answers what guarded kernels are not right on."""

VALUES = "values"
"""In the folder of Init: a folder of reference values."""


def artifact_folder(folder: str) -> Path:
    """Where in the folder of Init the artifacts are."""
    return Path(folder) / "artifacts"


def plan_folder(folder: str) -> Path:
    """Where in it the plans' files are."""
    return Path(folder) / "plans"


@dataclass(frozen=True)
class Request:
    """A candidate to measure: node ids of the model, ascending, the backend's name, and its variant.

    ``original`` asks for the model as its author wrote it in the place of all nodes, with a ``profile`` of the backend.
    """

    nodes: tuple[int, ...]
    backend: str
    variant: Variant = ALL_PLAIN
    original: bool = False
    profile: str = ""


@dataclass(frozen=True)
class Init:
    """The first message for a model. ``folder`` holds ``model.onnx``, maybe ``original.onnx``, and takes the reference
    values.

    ``carried`` are modules that the worker cannot import: what is sent of their classes travels with its code.
    ``wrong`` is what ``from_simplified`` was called with, ``fingerprint`` that of the graph it gave, and
    ``backends`` holds pickles. ``memory_bytes`` limits the worker's data; None: what the machine can spare.
    ``samples`` are the model's.
    """

    folder: str
    name: str
    wrong: Mapping[int, str]
    fingerprint: str
    backends: Mapping[str, bytes]
    threads: int
    memory_bytes: int | None
    samples: Mapping[str, Array] = field(default_factory=dict)
    carried: tuple[str, ...] = ()


@dataclass(frozen=True)
class InitWhole:
    """The first message for a model that engines run whole: ``folder`` holds it as ``model.onnx``.

    ``inputs`` are values in the model's order; ``backends`` holds pickles.
    """

    folder: str
    inputs: tuple[Any, ...]
    backends: Mapping[str, bytes]
    threads: int
    memory_bytes: int | None = None


@dataclass(frozen=True)
class OpenWhole:
    """Load the model in an engine and run it once. Reply: Opened, or a Rejection.

    ``unchecked`` is for an engine whose arithmetic is too narrow for the model (``Backend.check_model``).
    """

    backend: str
    limit_s: float
    unchecked: bool = False


@dataclass(frozen=True)
class ReferWhole:
    """Run the model in the reference: ONNX Runtime without optimisations, or onnx's own. Reply: Opened."""

    standard: bool
    limit_s: float


@dataclass(frozen=True)
class RunWhole:
    """Run the model on other inputs, in an engine that is open, or with "" in ONNX Runtime without optimisations.

    Reply: Opened.
    """

    backend: str
    inputs: tuple[Any, ...]
    limit_s: float


@dataclass(frozen=True)
class OpenParts:
    """Load a module whose parts are pickled in a file, and run it once; ``name`` stands for it from then on.

    Reply: Opened. ``inputs`` are those of InitWhole that it takes.
    """

    name: str
    path: str
    inputs: tuple[int, ...]
    limit_s: float


@dataclass(frozen=True)
class Opened:
    """The outputs of the run, or None and why it failed; ``loaded`` tells whether the model was loaded at least.

    ``narrow`` tells that the engine would run it, but in too few bits (``Backend.check_model``).
    """

    outputs: tuple[Any, ...] | None
    loaded: bool = True
    message: str = ""
    narrow: bool = False


@dataclass(frozen=True)
class CompareWhole:
    """Run engines or modules in turn, which are all open. Reply: Compared."""

    backends: tuple[str, ...]
    effort: Effort
    limit_s: float


@dataclass(frozen=True)
class Compared:
    """Timings by backend."""

    timings: Mapping[str, Timing]


@dataclass(frozen=True)
class Evaluate:
    """Compute the reference values, if they are not in the folder yet. Reply: Evaluated.

    An ONNX node may run for ``node_limit_s`` seconds.
    """

    node_limit_s: float


@dataclass(frozen=True)
class Measure:
    """Measure one candidate, with samples for ``sample_s`` seconds, and keep its artifact. Reply: an Outcome.

    One that takes longer than ``hopeless_us`` microseconds needs no precise time. The worker ends itself long after
    ``limit_s`` seconds.
    """

    request: Request
    options: BuildOptions
    limit_s: float
    sample_s: float
    hopeless_us: float = math.inf


@dataclass(frozen=True)
class MeasureTransform:
    """Measure a layout transform that ``backend`` makes, and keep its artifact. Reply: an Outcome."""

    transform: LayoutTransform
    backend: str
    options: BuildOptions
    limit_s: float
    sample_s: float


@dataclass(frozen=True)
class MeasureSwitch:
    """Measure the cost of switching between kernels of these candidates. Reply: SwitchCost."""

    requests: tuple[Request, ...]
    options: BuildOptions
    limit_s: float
    sample_s: float


@dataclass(frozen=True)
class Ready:
    """The worker has imported the model."""


@dataclass(frozen=True)
class Evaluated:
    """ONNX nodes, by index, whose conversion gives wrong numbers, with the reason."""

    wrong: Mapping[int, str]


@dataclass(frozen=True)
class SwitchCost:
    """Eq. 2.2's cost of one more launch, in microseconds."""

    us: float
