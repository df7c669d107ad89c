"""A static batch: requests that begin together, and whose batch stays what it is until the last one has its tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from scripts.lib.serving.trace import Arrival

if TYPE_CHECKING:
    from collage.serve.runner import Runner

Take = Callable[[int, int], None]
"""Takes the place of a request in the batch and its next token."""


def run_static_batch(
    runner: Runner, batch: Sequence[Arrival], take: Take, *, shortest_first: bool = False
) -> None:
    """Compute the prompts, and then one token of each request in each iteration, the likeliest one.

    Prompts are computed in iterations that are as large as they can be. With ``shortest_first`` that are only as many
    tokens of each as the shortest prompt has, and the others follow one by one, as in FasterTransformer (Orca, section
    6.2). Answers that have ended are computed on (Orca, section 3, C1), but not taken.
    """
    from collage.serve.core import run_steps, split_steps
    from collage.serve.runner import Slice

    tokens = [list(each.prompt) for each in batch]
    lengths = [len(each) for each in tokens]
    needed = -(-(max(lengths) + max(each.tokens for each in batch)) // runner.block_tokens)
    blocks = [tuple(range(i * needed, (i + 1) * needed)) for i in range(len(batch))]
    left = [each.tokens for each in batch]
    done = [0] * len(batch)
    ends = [min(lengths)] * len(batch) if shortest_first else lengths
    while any(left):
        slices = [
            Slice(tuple(mine[start:end]), start, cache, end == len(mine))
            for mine, start, end, cache in zip(tokens, done, ends, blocks, strict=True)
        ]
        wanted = [place for place, each in enumerate(slices) if each.wants_logits]
        logits = run_steps(runner, split_steps(slices, runner.max_tokens))
        for place, token in zip(wanted, np.argmax(logits, axis=1).tolist(), strict=True):
            tokens[place].append(token)
            if left[place]:
                left[place] -= 1
                take(place, token)
        done, ends = ends, [end + 1 for end in ends]
