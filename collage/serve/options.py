"""The options of an engine."""

from __future__ import annotations

import math
from dataclasses import dataclass

from collage.errors import UsageError, unknown_names
from collage.serve.chunked import plan_chunked
from collage.serve.orca import plan_orca
from collage.serve.plan import Policy

POLICIES: dict[str, Policy] = {"chunked": plan_chunked, "orca": plan_orca}


@dataclass(frozen=True)
class EngineOptions:
    """How an engine schedules.

    ``policy`` is "chunked", or "orca" (Algorithm 1 of the paper), which has no target and keeps no prefixes.
    ``max_running`` is the most sequences in an iteration, None for 32 to 64 by the measured times; ``max_waiting`` is
    the most that wait. ``itl_target_ms`` is the time between tokens that running streams keep while prompts are
    computed, None for twice what they take alone, unless many requests wait.
    """

    policy: str = "chunked"
    max_running: int | None = None
    max_waiting: int = 256
    itl_target_ms: float | None = None

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise unknown_names("policy", [self.policy], POLICIES)
        for name in ("max_running", "max_waiting"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} is {value}; it must be 1 or more.")
        target = self.itl_target_ms
        if target is not None and not (math.isfinite(target) and target > 0):
            raise UsageError(f"itl_target_ms is {target}; it must be a number of milliseconds above 0.")
        if self.policy == "orca" and target is not None:
            raise UsageError('the policy "orca" has no target for the time between tokens.')
