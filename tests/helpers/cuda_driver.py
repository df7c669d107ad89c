"""A stand-in for the NVIDIA driver's library, with so many GPUs, for what is asked of it before anything runs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest


class Driver:
    """libcuda with so many GPUs, which are all alike. ``problem`` is what ``cuInit`` answers."""

    def __init__(self, gpus: int, problem: int = 0, version: int = 13000, capability: tuple[int, int] = (9, 0)) -> None:
        self.gpus, self.problem, self.version, self.capability = gpus, problem, version, capability

    def cuInit(self, flags: int) -> int:  # noqa: N802
        return self.problem

    def cuDriverGetVersion(self, version: Any) -> int:  # noqa: N802
        version._obj.value = self.version
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = self.gpus
        return 0

    def cuDeviceGet(self, device: Any, index: int) -> int:  # noqa: N802
        device._obj.value = index
        return 0

    def cuDeviceGetName(self, name: Any, size: int, device: Any) -> int:  # noqa: N802
        name.value = b"NVIDIA Made-up 1"
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:  # noqa: N802
        value._obj.value = self.capability[attribute - 75]
        return 0

    def cuDeviceTotalMem_v2(self, size: Any, device: Any) -> int:  # noqa: N802
        size._obj.value = 80 << 30
        return 0


def no_driver(name: str) -> Any:
    """What ``ctypes.CDLL`` does on a machine without a driver."""
    raise OSError(f"{name}: cannot open shared object file")


def pretend(monkeypatch: pytest.MonkeyPatch, load: Callable[[str], Any]) -> None:
    """Let ``load`` give the driver's library, and nothing else."""
    real = ctypes.CDLL

    def open_library(name: Any, *rest: Any, **options: Any) -> Any:
        return load(name) if name == "libcuda.so.1" else real(name, *rest, **options)

    monkeypatch.setattr(ctypes, "CDLL", open_library)
