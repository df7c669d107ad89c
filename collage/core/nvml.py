"""The clocks of the GPU, as NVIDIA's management library (NVML) tells them. It comes with the driver.

It is called by ctypes, and only for the GPU that the driver has taken. Where it is missing, nothing is known.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from collage.core.cuda import gpu
from collage.core.cuda_driver import driver

__all__ = ["Clocks", "clocks"]

log = logging.getLogger(__name__)

LIBRARY = "libnvidia-ml.so.1"
"""The library, which every driver brings along."""

_SM, _MEMORY = 1, 2
"""NVML_CLOCK_SM and NVML_CLOCK_MEM of ``nvmlDeviceGetClockInfo``."""
_POWER_CAP = 0x4
"""nvmlClocksEventReasonSwPowerCap: the clocks are as high as the limit of power allows."""


@dataclass(frozen=True)
class Clocks:
    """The clocks of a GPU of that name at one moment: of its multiprocessors and of its memory, in MHz.

    ``power_capped`` tells that its limit of power held them back. Large products do that by themselves.
    """

    gpu: str
    sm_mhz: int
    memory_mhz: int
    power_capped: bool = False


def clocks() -> Clocks | None:
    """The clocks now of the GPU that this process uses, or None where NVML does not tell them."""
    read = _reader()
    return None if read is None else read()


@cache
def _reader() -> Callable[[], Clocks | None] | None:
    """What reads the clocks, or None where NVML is missing or does not know the GPU."""
    try:
        nvml = ctypes.CDLL(LIBRARY)
        device = ctypes.c_void_p()
        failed = nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByPciBusId_v2(
            driver().pci_bus_id.encode(), ctypes.byref(device)
        )
        if failed:
            log.info("NVML does not know the GPU (%d); clocks are not noted", failed)
            return None
        name = gpu().name
    except (
        OSError,
        RuntimeError,
        AttributeError,
    ) as error:  # no library, no GPU, or one without these functions
        log.info("clocks of the GPU are not noted: %s", error)
        return None
    return lambda: _read(nvml, device, name)


def _read(nvml: Any, device: ctypes.c_void_p, name: str) -> Clocks | None:
    found = []
    for kind in (_SM, _MEMORY):
        mhz = ctypes.c_uint()
        if nvml.nvmlDeviceGetClockInfo(device, kind, ctypes.byref(mhz)):
            return None
        found.append(mhz.value)
    reasons = ctypes.c_ulonglong()
    asked = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    capped = asked is not None and not asked(device, ctypes.byref(reasons)) and bool(reasons.value & _POWER_CAP)
    return Clocks(name, found[0], found[1], capped)
