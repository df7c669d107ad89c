"""How an engine schedules."""

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
    """The options of an engine.

    ``policy`` is "chunked" (the default) or "orca" (Algorithm 1 of the paper). ``max_running`` is the most sequences
    in an iteration, None for 32 to 64 by the measured times; ``max_waiting`` is the most that wait for one.
    ``itl_target_ms`` is the time between tokens that running streams keep while prompts are computed; None is twice
    what they take alone, unless many requests wait. ``prefix_caching`` keeps the blocks of finished sequences for those
    that begin alike; None is yes where the policy can. With ``preemption``, sequences are admitted when their prompt
    fits, and the last one is driven out and computed again when blocks run out; without it, blocks are reserved. Orca's
    policy has no target, no prefix caching and no preemption. ``trace_iterations`` is how many iterations the trace
    keeps, the latest ones.
    """

    policy: str = "chunked"
    max_running: int | None = None
    max_waiting: int = 256
    itl_target_ms: float | None = None
    prefix_caching: bool | None = None
    preemption: bool = False
    trace_iterations: int = 0

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise unknown_names("policy", [self.policy], POLICIES)
        for name, least in (("max_running", 1), ("max_waiting", 1), ("trace_iterations", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"{name} is {value}; it must be {least} or more.")
        target = self.itl_target_ms
        if target is not None and not (math.isfinite(target) and target > 0):
            raise UsageError(f"itl_target_ms is {target}; it must be a number of milliseconds above 0.")
        if self.policy == "orca" and self.preemption:
            raise UsageError('the policy "orca" reserves all slots of a request, so it cannot preempt.')
        if self.policy == "orca" and target is not None:
            raise UsageError('the policy "orca" has no target for the time between tokens.')
        if self.policy == "orca" and self.prefix_caching:
            raise UsageError('the policy "orca" has no prefix caching.')

    @property
    def keeps_prefixes(self) -> bool:
        """Whether blocks of finished sequences are kept."""
        return self.policy != "orca" if self.prefix_caching is None else self.prefix_caching
