"""Plans of models that engines run whole, and what their worker is sent and gives (see ``WholeWorker``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
class Opened:
    """The outputs of the run, or None and why it failed; ``loaded`` says if the model was loaded at least."""

    outputs: tuple[Any, ...] | None
    loaded: bool = True
    message: str = ""


@dataclass(frozen=True)
class EngineTrial:
    """Errors of the plans that are right, and why the others are not, each by the plan's label.

    ``errors`` are the largest absolute and relative error. ``loaded`` are plans that load the model, but fail on the
    inputs that there are.
    """

    errors: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    loaded: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def of(self, label: str) -> EngineTrial:
        """What was found of one plan."""
        return EngineTrial(
            {name: each for name, each in self.errors.items() if name == label},
            {name: each for name, each in self.refused.items() if name == label},
            tuple({label}.intersection(self.loaded)),
            self.notes,
        )
