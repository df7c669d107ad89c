"""Plans of cuDNN are made once for the variants that follow each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from collage.backends.cudnn_kernels import plans
from collage.backends.cudnn_kernels.graph import INPUT, OUTPUT, CudnnGraph, Tensor
from collage.backends.cudnn_kernels.plans import CudnnPlan, first_plans

GRAPH = CudnnGraph((Tensor((2, 3), (3, 1), role=INPUT), Tensor((2, 3), (3, 1), role=OUTPUT)), ())


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What has been made; there are three plans."""
    found: list[str] = []

    def offered(graph: CudnnGraph, precision: str, *, direct: bool, device: Any = None) -> Iterator[CudnnPlan]:
        for number in range(3):
            found.append(f"{precision}{number}")
            yield CudnnPlan(b"%d" % number, number)

    monkeypatch.setattr(plans, "offered_plans", offered)
    plans._offered.cache_clear()
    return found


def test_each_plan_is_made_once_and_when_it_is_asked_for(made: list[str]) -> None:
    first = first_plans(GRAPH, "", 1, direct=False)
    assert [each.data for each in first] == [b"0"] and made == ["0"]
    assert [each.data for each in first_plans(GRAPH, "", 2, direct=False)] == [b"0", b"1"]
    assert len(first_plans(GRAPH, "", 4, direct=False)) == 3
    assert first_plans(GRAPH, "", 1, direct=False) == first
    assert made == ["0", "1", "2"]
    first_plans(GRAPH, "tf32", 1, direct=False)
    first_plans(GRAPH, "tf32", 1, direct=True)
    assert made[3:] == ["tf320", "tf320"]
