"""What the driver says of a GPU, and what is missing where there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from collage.core.cuda import Gpu, NoGpuError, gpu
from tests.helpers.cuda_driver import Driver, no_driver, pretend


def test_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, lambda name: Driver(2, version=13020))
    found = gpu()
    assert found == Gpu("NVIDIA Made-up 1", (9, 0), 80 << 30, (13, 2))
    assert found.architecture == "sm_90"


@pytest.mark.parametrize(
    ("load", "problem", "fix"),
    [
        (no_driver, "there is no NVIDIA driver (libcuda.so.1)", ""),
        (lambda name: Driver(0), "the NVIDIA driver finds no GPU", "nvidia-smi"),
        (lambda name: Driver(1, problem=100), "the NVIDIA driver finds no GPU", "nvidia-smi"),
        (lambda name: Driver(1, version=12090), "the NVIDIA driver is for CUDA 12.9", "CUDA 13.0 or later"),
    ],
)
def test_what_is_missing(load: Callable[[str], Any], problem: str, fix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, load)
    with pytest.raises(NoGpuError) as raised:
        gpu()
    assert str(raised.value) == problem
    assert fix in raised.value.fix
    assert bool(fix) == bool(raised.value.fix)
