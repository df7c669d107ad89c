"""What trying engines on a whole model has found: errors, and the reasons against an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


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

    def to_json(self) -> dict[str, Any]:
        """Plain values for the database."""
        return {**asdict(self), "errors": {n: list(e) for n, e in self.errors.items()}}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> EngineTrial:
        """The inverse of ``to_json``. Raises KeyError, TypeError and the like for other values."""
        errors = {n: (e[0], e[1]) for n, e in data["errors"].items()}
        return EngineTrial(errors, data["refused"], tuple(data["loaded"]), tuple(data["notes"]))
