"""What is the same for all measurements of a compile: backends, hardware, effort and limits."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from collage.backends.base import Backend
from collage.kernel.options import BuildOptions
from collage.measure.timing.effort import FULL, Effort

MEMORY_VARIABLE = "COLLAGE_WORKER_MEMORY"
"""Environment variable with the worker's memory limit in bytes. It counts where ``CandidateLimits`` sets none."""


@dataclass(frozen=True)
class CandidateLimits:
    """What a candidate may use.

    ``time_s`` is the time limit in seconds for building and timing it; tuning has TRIAL_LIMIT_S seconds for each trial
    on top of that. ``memory_bytes`` limits the worker's data. Where it is None the environment variable decides, and
    without that the memory that the machine can spare.
    """

    time_s: float = 60.0
    memory_bytes: int | None = None

    def worker_memory(self) -> int | None:
        """The worker's memory limit in bytes, or None where neither the field nor the environment sets one."""
        if self.memory_bytes is not None:
            return self.memory_bytes
        text = os.environ.get(MEMORY_VARIABLE, "")
        return int(text) if text.isdigit() else None


@dataclass(frozen=True)
class MeasureSettings:
    """How the candidates of a compile are built and measured.

    ``backends`` are by name, and ``versions`` gives the version of each as ``keyed_versions`` makes it. ``build`` is
    what kernels are built for. ``hardware`` is Target.measured_on. ``effort`` says how long samples are taken.
    """

    backends: Mapping[str, Backend]
    versions: Mapping[str, str]
    build: BuildOptions
    hardware: str
    effort: Effort = FULL
    limits: CandidateLimits = CandidateLimits()

    @property
    def threads(self) -> int:
        """The number of threads that kernels are built for."""
        return self.build.threads

    def on_threads(self, threads: int) -> MeasureSettings:
        """The settings for kernels on that many threads. On another number of threads than now nothing is tuned."""
        if threads == self.threads:
            return self
        build = self.build
        return replace(
            self,
            build=replace(
                BuildOptions(threads),
                exact=build.exact,
                reassociate=build.reassociate,
                precisions=build.precisions,
            ),
        )
