"""A candidate is asked for again where the reference has ended its process, and only there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from collage.check.samples import fatal_samples
from collage.measure.jobs import ask_fairly
from collage.measure_db.results import Measurement, Outcome, Rejection, RejectionKind

MEASURED = Measurement(1.0, 0.1, 0.9, 9, 0.0)


class Reference:
    """A worker that leaves a note of what it tried when it ended, the first time it is asked."""

    def __init__(self, folder: Path, first: Outcome) -> None:
        self.folder, self.outcomes = folder, [first, MEASURED]

    def ask(self, message: Any, what: str, threads: int) -> Any:
        if len(self.outcomes) == 2:
            (self.folder / "new.trying").touch()
        return self.outcomes.pop(0)

    def fatal_samples(self) -> set[Path]:
        return fatal_samples(self.folder)


@pytest.mark.parametrize("kind", [*RejectionKind])
def test_only_a_reference_that_ended_by_itself_is_to_blame(kind: RejectionKind, tmp_path: Path) -> None:
    """One that was killed since the time was over has survived its inputs so far."""
    (tmp_path / "old.trying").touch()
    first = Rejection(kind, "x")
    again = kind in (RejectionKind.CRASHED, RejectionKind.MEMORY)
    assert ask_fairly(Reference(tmp_path, first), None, "x", 1) == (MEASURED if again else first)  # type: ignore[arg-type]
    assert {each.stem for each in fatal_samples(tmp_path)} == {"old"} | ({"new"} if again else set())
