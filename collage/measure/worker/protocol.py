"""The messages between the measurer and its worker, and their replies. A ``child_process.Failure`` may answer any.

Those about plans are in ``plan_protocol``, and those about whole models in ``whole_protocol``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from collage.core.nvml import Clocks
from collage.graph.dataflow import Array
from collage.kernel.options import ALL_PLAIN, BuildOptions, Variant
from collage.measure.timing.calls import PRECISE, Enough
from collage.measure.timing.race import LaneTime
from collage.measure_db.results import Rejection

AS_LOADED = "as_loaded.onnx"
"""The model that answers what guarded kernels are not right on, in the folder of plans."""

VALUES = "values"
"""The folder of reference values, in the folder of Init."""


def artifact_folder(folder: str) -> Path:
    """The folder of the artifacts, in the folder of Init."""
    return Path(folder) / "artifacts"


def ahead_folder(folder: str) -> Path:
    """The folder of the artifacts that were built ahead, in the folder of Init."""
    return Path(folder) / "ahead"


def plan_folder(folder: str) -> Path:
    """The folder of the plans' files, in the folder of Init."""
    return Path(folder) / "plans"


def running_in(folder: str | Path) -> Array:
    """The file with the number of the kernel that a worker runs, as an array of one element."""
    path = Path(folder) / "racing"
    if not path.exists():
        path.write_bytes(bytes(8))
    return np.asarray(np.memmap(path, np.int64, "r+", shape=(1,)))


@dataclass(frozen=True)
class CandidateRequest:
    """A candidate to measure: node ids of the model, ascending, the backend's name, and its variant."""

    nodes: tuple[int, ...]
    backend: str
    variant: Variant = ALL_PLAIN


@dataclass(frozen=True)
class SentModel:
    """What the worker needs besides the ONNX file to import the same model.

    ``opaque`` are the ONNX nodes (by index) that are not converted, with the reasons. ``fingerprint`` is that of the
    graph which the worker must get. ``example_inputs`` are the user's inputs by name.
    """

    name: str
    opaque: Mapping[int, str]
    fingerprint: str
    example_inputs: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class Init:
    """The first message for a model. Reply: None.

    ``folder`` holds ``model.onnx``; the worker writes the reference values there.
    ``backends`` holds pickles by name. ``memory_bytes`` limits the worker's data; None means what the machine can
    spare.
    The model has ``nodes`` ONNX nodes, each of which may take ``node_limit_s`` seconds in the reference run. A worker
    in the ``background`` only builds, and stands still while others time something.
    """

    folder: str
    model: SentModel
    backends: Mapping[str, bytes]
    threads: int
    memory_bytes: int | None
    nodes: int
    node_limit_s: float
    background: bool = False


@dataclass(frozen=True)
class Ask:
    """Call a public method of the worker. Reply: what it returns.

    The worker ends itself long after ``limit_s`` seconds.
    """

    method: str
    args: tuple[Any, ...]
    limit_s: float


class AskPlan(Ask):
    """Call a method about a plan, see ``PlanWorker``. Reply: what it returns, or PlanFailed."""


@dataclass(frozen=True)
class TryKernel:
    """Build a kernel, run it once alone on the usual inputs and compare its outputs. Reply: Tried, or KernelFailed.

    The worker holds it under a ``number`` then, beside those that it shall ``keep``; others are let go. ``known`` is a
    kernel that was measured: it is loaded if its artifact is there, and not compared. The worker ends itself long after
    ``limit_s`` seconds.
    """

    number: int
    request: CandidateRequest
    options: BuildOptions
    limit_s: float
    keep: tuple[int, ...] = ()
    known: bool = False


@dataclass(frozen=True)
class Tried:
    """The kernel is held with so many bytes; ``error`` and ``tuning`` are as in ``Measurement``."""

    error: float = 0.0
    tuning: str = ""
    held_bytes: int = 0


@dataclass(frozen=True)
class RaceKernels:
    """Race the kernels that are held under these numbers; see ``timing.race``. Reply: RaceRun, or KernelFailed.

    Those of the ``incumbent`` together take ``known_us`` microseconds alone. ``charges_us`` are what calls cost on top.
    Kernels on the host whose library lets its idle threads spin begin a turn after ``settle_s`` seconds.
    """

    numbers: tuple[int, ...]
    incumbent: tuple[int, ...]
    known_us: float
    charges_us: Mapping[int, float]
    candidate_s: float
    limit_s: float
    enough: Enough = PRECISE
    settle_s: float = 0.0


@dataclass(frozen=True)
class RaceRun:
    """What the race shows of each kernel, by number; ``busy`` and ``clocks`` are as in ``Measurement``."""

    raced: Mapping[int, LaneTime]
    busy: float | None = None
    clocks: Clocks | None = None


@dataclass(frozen=True)
class KernelFailed:
    """The kernel under that number failed, or ``ended`` the process, so that nothing is held any more."""

    number: int
    rejection: Rejection
    ended: bool = False


@dataclass(frozen=True)
class CheckKernel:
    """Compare a kernel that is held on inputs out of the ordinary, and keep its artifact if it is right.

    Reply: gate.Checked, or KernelFailed.
    """

    number: int
    limit_s: float


@dataclass(frozen=True)
class Evaluated:
    """What the reference run has found.

    ``wrong`` has the ONNX nodes, by index, whose conversion gives wrong numbers, with the reasons. ``extraordinary``
    are the values of which a scan finds something (see ``check.extraordinary``).
    """

    wrong: Mapping[int, str]
    extraordinary: tuple[int, ...] = ()
