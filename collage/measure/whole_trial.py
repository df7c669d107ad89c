"""What measuring a whole model on engines has found: timings, errors, and the reasons against an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from collage.measure_db.keys import busiest
from collage.measure_db.results import Timing


@dataclass(frozen=True)
class EngineTrial:
    """Timings and errors of the engines that are right, and why the others are not, each by engine.

    ``errors`` are the largest absolute and relative error. ``loaded`` are engines that load the model, but fail on the
    inputs that there are. ``finite_only`` are those that differ from ONNX Runtime on NaN or infinities. ``late_busy``
    says how busy the machine was when an engine had taken too long, and is None where none had.
    """

    timings: Mapping[str, Timing] = field(default_factory=dict)
    errors: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    loaded: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    finite_only: tuple[str, ...] = ()
    late_busy: float | None = None

    def busy(self) -> float | None:
        """How busy the machine was, or None where nothing was timed, and nothing took too long."""
        found = (busiest(self.timings), self.late_busy)
        return max((each for each in found if each is not None), default=None)

    def to_json(self) -> dict[str, Any]:
        """Plain values for the database."""
        return {**asdict(self), "errors": {n: list(e) for n, e in self.errors.items()}}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> EngineTrial:
        """The inverse of ``to_json``. Raises KeyError, TypeError and the like for other values."""
        return EngineTrial(
            {n: Timing(**t) for n, t in data["timings"].items()},
            {n: (e[0], e[1]) for n, e in data["errors"].items()},
            data["refused"],
            tuple(data["loaded"]),
            tuple(data["notes"]),
            tuple(data["finite_only"]),
            data.get("late_busy"),
        )
