"""Comparisons of whole networks pause where a library's threads may spin after a run, and nowhere else."""

from __future__ import annotations

import time

import pytest

from collage.measure.timing.effort import FULL


@pytest.mark.parametrize("pauses", [True, False])
def test_turns_begin_with_a_pause_only_where_one_is_needed(
    pauses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    sleep = time.sleep

    def noted(seconds: float) -> None:
        slept.append(seconds)
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", noted)
    found = FULL.compare({"a": lambda: None, "b": lambda: None}, pauses=pauses)
    assert found.keys() == {"a", "b"}
    assert (FULL.settle_s in slept) == pauses
