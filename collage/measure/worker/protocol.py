"""The messages between the measurer and its worker, and their replies. A ``child_process.Failure`` may answer any.

Those about plans are in ``plan_protocol``, and those about whole models in ``whole_protocol``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from collage.graph.dataflow import Array
from collage.kernel.machine_speeds import MachineSpeeds
from collage.kernel.options import ALL_PLAIN, BuildOptions, Variant
from collage.kernel.transform import LayoutTransform
from collage.measure.timing.calls import PRECISE, Enough

ORIGINAL_FILE = "original.onnx"
"""The model as its author wrote it, in the folder of Init. Its inputs and outputs are in the graph's order."""

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


@dataclass(frozen=True)
class CandidateRequest:
    """A candidate to measure: node ids of the model, ascending, the backend's name, and its variant.

    ``original`` asks for the model as its author wrote it in the place of all nodes, with a ``profile`` of the backend.
    """

    nodes: tuple[int, ...]
    backend: str
    variant: Variant = ALL_PLAIN
    original: bool = False
    profile: str = ""


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
    """The first message for a model. Reply: Ready.

    ``folder`` holds ``model.onnx`` and maybe ``original.onnx``; the worker writes the reference values there.
    ``backends`` holds pickles by name. ``carried`` are modules that the worker cannot import, so that objects of their
    classes are sent with the code. ``memory_bytes`` limits the worker's data; None means what the machine can spare.
    ``calibration_us`` is the best calibration that is known of the machine. A worker in the ``background`` only builds,
    and stands still while others time something.
    """

    folder: str
    model: SentModel
    backends: Mapping[str, bytes]
    carried: tuple[str, ...]
    threads: int
    memory_bytes: int | None
    calibration_us: float | None = None
    background: bool = False


@dataclass(frozen=True)
class Evaluate:
    """Compute the reference values, if they are not in the folder yet. Reply: Evaluated.

    An ONNX node may run for ``node_limit_s`` seconds.
    """

    node_limit_s: float


@dataclass(frozen=True)
class Measure:
    """Measure one candidate, with samples for ``sample_s`` seconds, and keep its artifact. Reply: an Outcome.

    Fewer samples will do where they are ``enough``. A candidate that is known to take longer than ``rival_us``
    microseconds after a few samples is let go: the reply is Slower. The worker ends itself long after ``limit_s``
    seconds.
    """

    request: CandidateRequest
    options: BuildOptions
    limit_s: float
    sample_s: float
    rival_us: float = math.inf
    enough: Enough = PRECISE


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

    requests: tuple[CandidateRequest, ...]
    options: BuildOptions
    limit_s: float
    sample_s: float


@dataclass(frozen=True)
class MeasureSpeeds:
    """Measure the machine's speeds, with samples for ``sample_s`` seconds. It needs no model. Reply: MeasuredSpeeds.

    ``calibration_us`` is as in Init.
    """

    threads: int
    sample_s: float
    limit_s: float
    calibration_us: float | None = None


@dataclass(frozen=True)
class MeasuredSpeeds:
    """The machine's speeds, and how busy the machine was meanwhile."""

    speeds: MachineSpeeds
    busy: float | None = None


@dataclass(frozen=True)
class TellSpent:
    """Tell where the time went since the last such message. Reply: Spent."""

    limit_s: float = 5.0


@dataclass(frozen=True)
class Spent:
    """Seconds by kind of work (see ``collage.check.spent``)."""

    seconds: Mapping[str, float]


@dataclass(frozen=True)
class Ready:
    """The worker has imported the model."""


@dataclass(frozen=True)
class Evaluated:
    """What the reference run has found.

    ``wrong`` has the ONNX nodes, by index, whose conversion gives wrong numbers, with the reasons. ``extraordinary``
    are the values of which a scan finds something (see ``check.extraordinary``).
    """

    wrong: Mapping[int, str]
    extraordinary: tuple[int, ...] = ()


@dataclass(frozen=True)
class SwitchCost:
    """Eq. 2.2's cost of one more launch, in microseconds, and how busy the machine was."""

    us: float
    busy: float | None = None
