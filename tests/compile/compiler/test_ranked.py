"""The order of plans after the last comparison."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from collage.compiler.executable import Executable
from collage.compiler.passes.select import _ranked
from collage.measure_db.results import Timing


def finalist(label: str, launches: int, concurrent: bool = False) -> Executable:
    program = SimpleNamespace(launches=[label] * launches)
    return cast(
        Executable,
        SimpleNamespace(label=label, program=program, concurrent=concurrent, tuned=False, reduced=False),
    )


def winner(finalists: list[Executable], **timings: tuple[float, float]) -> str:
    """``timings`` are medians and their noise."""
    found = {name: Timing(us, noise, us, us, 20) for name, (us, noise) in timings.items()}
    return _ranked(finalists, found)[0].label


def test_the_simplest_of_those_that_tie_wins() -> None:
    both = [finalist("mix", 80), finalist("engine", 1)]
    assert winner(both, mix=(100.0, 3.0), engine=(100.5, 4.0)) == "engine"
    assert winner(both, mix=(100.0, 0.1), engine=(100.5, 0.1)) == "mix"
    same = [finalist("streams", 80, concurrent=True), finalist("mix", 80)]
    assert winner(same, streams=(100.0, 3.0), mix=(100.5, 4.0)) == "mix"


def test_noise_does_not_make_a_tie_of_a_difference_that_one_would_notice() -> None:
    both = [finalist("mix", 80), finalist("engine", 1)]
    assert winner(both, mix=(100.0, 8.0), engine=(103.0, 8.0)) == "mix"
    assert winner(both, mix=(103.0, 8.0), engine=(100.0, 8.0)) == "engine"
