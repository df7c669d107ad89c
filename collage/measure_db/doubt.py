"""What a slow GPU or a lack of memory has decided is decided again when that is over.

It is decided again only where somebody needs it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from collage.core.nvml import Clocks
from collage.measure_db.results import Rejection, RejectionKind, limit_in

_SHARE = 0.93
"""A GPU whose clocks are below this share of the highest ones was slow. Its usual steps are of 15 MHz in some 2000."""
_MORE, _MORE_BYTES = 1.05, 64 << 20
"""So many times the memory, and so many bytes more, have to be free before a kernel is tried again that had too little.
A worker that has measured others before it holds some of their memory, which is no reason."""
_MORE_OF_HOST = 1.25
"""The same of the host's memory, of which other programs have more at one time and less at another."""


@dataclass(frozen=True)
class GpuNow:
    """The bytes of memory that a process finds free that has just begun to use the GPU, and its clocks under load.

    None is unknown.
    """

    free_bytes: int | None = None
    clocks: Clocks | None = None


class Doubt:
    """Doubts what was recorded before it was made, in circumstances that are over now.

    - What was measured on a GPU with low clocks, if they are high now.
    - That there is too little memory for a kernel, on a GPU or on the host, if much more is free now.
    - That a candidate took more than a limit, if the limit is higher now.

    What the machine is like now is asked once, and only if there is such a row. What is recorded from now on is not
    doubted, so that nothing is measured twice in one compile.
    """

    def __init__(
        self,
        gpu_now: Callable[[], GpuNow] = GpuNow,
        host_bytes_now: Callable[[], int | None] = lambda: None,
        on_gpu: Collection[str] = (),
    ) -> None:
        """``host_bytes_now`` tells the memory that a worker may take, and ``on_gpu`` are the backends for GPUs."""
        self._ask_gpu, self._ask_host = gpu_now, host_bytes_now
        self._on_gpu = on_gpu
        self._since = time.time()

    def slow(self, clocks: Clocks | None, best: Mapping[str, Clocks], created: float) -> bool:
        """Whether a measurement at these clocks is doubted, where ``best`` are the highest ones by GPU."""
        if clocks is None or created >= self._since or not held_back(clocks, best):
            return False
        now = self._gpu.clocks
        return now is not None and now.gpu == clocks.gpu and not held_back(now, best)

    def rejected(self, rejection: Rejection, backend: str, created: float, limit_s: float) -> bool:
        """Whether it is doubted that a backend's candidate is of no use, which may take ``limit_s`` seconds now."""
        if created >= self._since:
            return False
        if rejection.kind is RejectionKind.TIMEOUT:
            told = limit_in(rejection.message)
            return told is not None and limit_s > told
        if rejection.free_bytes is None:
            return False
        gpu = backend in self._on_gpu
        now, more = (self._gpu.free_bytes, _MORE) if gpu else (self._host_bytes, _MORE_OF_HOST)
        return now is not None and now > more * rejection.free_bytes + _MORE_BYTES

    @cached_property
    def _host_bytes(self) -> int | None:
        return self._ask_host()

    @cached_property
    def _gpu(self) -> GpuNow:
        return self._ask_gpu()


def held_back(clocks: Clocks, best: Mapping[str, Clocks]) -> bool:
    """Whether the clocks are clearly below the highest ones of the same GPU, and not by its limit of power.

    A large product reaches that limit by itself, whenever it is measured.
    """
    highest = best.get(clocks.gpu)
    if highest is None or clocks.power_capped:
        return False
    return clocks.sm_mhz < _SHARE * highest.sm_mhz or clocks.memory_mhz < _SHARE * highest.memory_mhz
