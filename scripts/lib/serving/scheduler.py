"""The time that an iteration takes beside the model: the engine on a runner that computes nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collage.serve.runner import Slice

_PROMPT, _ANSWER = 64, 400
_WARM = 50


class _NoModel:
    """A runner whose answer is always token 1, at no cost."""

    block_tokens, block_count = 32, 1 << 16
    max_tokens, max_length, vocabulary = 256, 1024, 2
    buckets = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)

    def step(self, slices: Sequence[Slice]) -> NDArray[np.float32]:
        """A row of logits for each slice that wants them."""
        return np.tile(np.array([0, 1], np.float32), (sum(each.wants_logits for each in slices), 1))

    def cost_ms(self, tokens: int) -> float:
        """Something that grows with the tokens."""
        return 10.0 + tokens

    def close(self) -> None:
        """There is nothing to free."""


def iteration_us(running: int) -> Mapping[str, float]:
    """Microseconds of an iteration with so many streams: of the scheduler, of each of its parts, and of a whole turn.

    ``prompts`` is the same while there are prompts to be computed in chunks.
    """
    from collage.serve.core import Core
    from collage.serve.options import EngineOptions
    from collage.serve.request import Request
    from collage.serve.sampling import Sampling

    core = Core(_NoModel(), EngineOptions(max_running=running))
    sampling = Sampling(max_tokens=_ANSWER, temperature=0.0)
    for i in range(running):
        prompt = tuple((i * 7 + n) % 2 for n in range(_PROMPT + i))
        core.add(Request(i, prompt, sampling), 0.0)
    parts: dict[str, list[float]] = {"plan": [], "begin": [], "finish": []}
    prompts: list[float] = []
    while core.busy:
        times = [time.perf_counter()]
        plan = core.plan(0.0)
        times.append(time.perf_counter())
        steps, _ = core.begin(plan, 0.0)
        times.append(time.perf_counter())
        logits = core.run(steps)
        begin = time.perf_counter()
        core.finish(plan, logits, 0.0)
        spent = [times[1] - times[0], times[2] - times[1], time.perf_counter() - begin]
        core.left.clear()
        if plan.tokens == running and len(plan.parts) == running:
            for each, seconds in zip(parts.values(), spent, strict=True):
                each.append(seconds)
        else:
            prompts.append(sum(spent))
    found = {name: 1e6 * float(np.median(each[_WARM:])) for name, each in parts.items()}
    return {
        "scheduler": sum(found.values()),
        **found,
        "prompts": 1e6 * float(np.median(prompts)),
    }
