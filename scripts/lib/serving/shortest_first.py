"""Request-level scheduling on Collage's kernels, as FasterTransformer has it in Figure 10 of Orca's paper."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from scripts.lib.serving.collage_engine import open_runner
from scripts.lib.serving.process import Setup
from scripts.lib.serving.trace import Arrival

if TYPE_CHECKING:
    from collage.serve.runner import Runner

BATCH = 8


class ShortestFirst:
    """Batches of at most eight requests, none of which begins before the last one has ended."""

    def __init__(self, setup: Setup) -> None:
        self._runner, facts = open_runner(setup)
        self.facts = {**facts, "running": BATCH}

    def serve(self, arrivals: Sequence[Arrival], note: Callable[[int, int], None]) -> None:
        """Serve the requests. All answers of a batch come with the longest."""
        start = time.monotonic()
        waiting = list(enumerate(arrivals))
        while waiting:
            now = time.monotonic() - start
            batch = [each for each in waiting[:BATCH] if each[1].at_s <= now]
            if not batch:
                time.sleep(max(0.0, waiting[0][1].at_s - now))
                continue
            del waiting[: len(batch)]
            answers = static_batch(self._runner, [each for _, each in batch])
            for (number, _), answer in zip(batch, answers, strict=True):
                for token in answer:
                    note(number, token)


def static_batch(runner: Runner, batch: Sequence[Arrival]) -> list[list[int]]:
    """The likeliest tokens of requests that begin together, and stay together until the last one has its tokens.

    As many tokens of each prompt as the shortest one has are computed first, and the others follow one by one (Orca,
    section 6.2). Answers that have ended are computed on (section 3, C1), but not returned.
    """
    from collage.serve.core import run_steps, split_steps
    from collage.serve.runner import Slice

    tokens = [list(each.prompt) for each in batch]
    longest = max(len(each.prompt) for each in batch) + max(each.tokens for each in batch)
    needed = -(-longest // runner.block_tokens)
    blocks = [tuple(range(i * needed, (i + 1) * needed)) for i in range(len(batch))]
    done, end = 0, min(map(len, tokens))
    while any(len(mine) - len(each.prompt) < each.tokens for mine, each in zip(tokens, batch, strict=True)):
        slices = [
            Slice(tuple(mine[done:end]), done, cache, end == len(mine))
            for mine, cache in zip(tokens, blocks, strict=True)
        ]
        wanted = [mine for mine, each in zip(tokens, slices, strict=True) if each.wants_logits]
        logits = run_steps(runner, split_steps(slices, runner.max_tokens))
        for mine, token in zip(wanted, np.argmax(logits, axis=1).tolist(), strict=True):
            mine.append(token)
        done, end = end, end + 1
    return [mine[len(each.prompt) : len(each.prompt) + each.tokens] for mine, each in zip(tokens, batch, strict=True)]
