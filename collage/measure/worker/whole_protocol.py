"""The messages about models that engines run whole, and their replies.

A ``child_process.Failure`` may answer any of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

WRITTEN, FOLDED = "written", "folded"
"""Forms of a model: as its author wrote it, with shapes fixed, and simplified, with constants folded."""


@dataclass(frozen=True)
class Whole:
    """A plan: one engine runs the whole model, in one of its forms, with a profile, and perhaps reduced precision."""

    engine: str
    form: str = WRITTEN
    profile: str = ""
    precision: str = ""

    @property
    def label(self) -> str:
        """The name of the plan in reports."""
        form = "folded" if self.form == FOLDED else "as written"
        return ", ".join(filter(None, (self.engine, form, self.profile, self.precision)))

    @property
    def split(self) -> str:
        """The form and the profile in reports, where both follow from others if the model is run as written."""
        return ", ".join(filter(None, ("folded", self.profile))) if self.form == FOLDED else ""


@dataclass(frozen=True)
class InitWhole:
    """The first message for a model that engines run whole. Reply: None.

    ``folder`` has a folder for each form, which holds it as ``model.onnx``. ``inputs`` are values in the model's order;
    ``backends`` holds pickles.
    """

    folder: str
    inputs: tuple[Any, ...]
    backends: Mapping[str, bytes]
    threads: int
    memory_bytes: int | None = None


@dataclass(frozen=True)
class OpenWhole:
    """Load the model in an engine and run it twice; the plan's label stands for it from then on. Reply: Opened.

    ``unchecked`` is for an engine whose arithmetic is too narrow for the model (``Engine.check_model``).
    """

    plan: Whole
    limit_s: float
    unchecked: bool = False


@dataclass(frozen=True)
class CloseWhole:
    """Forget what was opened under these names. Reply: Opened."""

    names: tuple[str, ...]
    limit_s: float


@dataclass(frozen=True)
class ReferWhole:
    """Run the model in the reference: ONNX Runtime without optimisations, or onnx's own. Reply: Opened."""

    standard: bool
    limit_s: float


@dataclass(frozen=True)
class RunWhole:
    """Run the model on other inputs, in what is open as ``name``, or with "" in ONNX Runtime without optimisations.

    There, weights may be changed in their last bits, by a seed. Without inputs the usual ones count. Reply: Opened.
    """

    name: str
    inputs: tuple[Any, ...] | None
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
class TurnWhole:
    """Take a turn with what is open as ``name`` (see ``interleave.take_turn``). Reply: nanoseconds, or Opened."""

    name: str
    settle_s: float
    turn_s: float
    limit_s: float


@dataclass(frozen=True)
class Opened:
    """The outputs of the run, or None and why it failed; ``loaded`` says if the model was loaded at least.

    ``narrow`` says that the engine would run it, but in too few bits (``Engine.check_model``).
    """

    outputs: tuple[Any, ...] | None
    loaded: bool = True
    message: str = ""
    narrow: bool = False
