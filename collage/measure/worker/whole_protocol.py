"""The messages about models that engines run whole, and their replies.

A ``child_process.Failure`` may answer any of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from collage.measure.timing.effort import Effort
from collage.measure_db.results import Timing


@dataclass(frozen=True)
class InitWhole:
    """The first message for a model that engines run whole. Reply: Ready.

    ``folder`` holds it as ``model.onnx``. ``inputs`` are values in the model's order; ``backends`` holds pickles.
    """

    folder: str
    inputs: tuple[Any, ...]
    backends: Mapping[str, bytes]
    threads: int
    memory_bytes: int | None = None


@dataclass(frozen=True)
class OpenWhole:
    """Load the model in an engine and run it once. Reply: Opened, or a Rejection.

    ``unchecked`` is for an engine whose arithmetic is too narrow for the model (``Engine.check_model``).
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

    There, weights may be changed in their last bits, by a seed. Reply: Opened.
    """

    backend: str
    inputs: tuple[Any, ...]
    limit_s: float
    weights_seed: int | None = None


@dataclass(frozen=True)
class OpenParts:
    """Load a module whose parts are pickled in a file, and run it once; ``name`` stands for it from then on.

    Reply: Opened. ``inputs`` are the positions of its inputs among those of InitWhole.
    """

    name: str
    path: str
    inputs: tuple[int, ...]
    limit_s: float


@dataclass(frozen=True)
class Opened:
    """The outputs of the run, or None and why it failed; ``loaded`` tells whether the model was loaded at least.

    ``narrow`` tells that the engine would run it, but in too few bits (``Engine.check_model``).
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
    """The timings by the names of the engines or modules."""

    timings: Mapping[str, Timing]
