"""Comparisons of whole networks pause where a library's threads may spin after a run, and nowhere else."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from collage.api import default_registry
from collage.backends.base import VIEW
from collage.measure.timing.effort import FULL
from collage.measure.worker.plan_worker import has_own_threads


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


@pytest.mark.parametrize(
    ("names", "own"),
    [((VIEW, "native", "tvm"), False), (("native", "onnxruntime"), True), (("openvino",), True)],
)
def test_engines_have_threads_of_their_own(names: tuple[str, ...], own: bool) -> None:
    program: Any = SimpleNamespace(executed=[SimpleNamespace(backend=name) for name in names])
    assert has_own_threads(program, default_registry()) == own
