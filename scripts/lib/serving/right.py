"""The engine's greedy answers against the original decoder, which ONNX Runtime runs alone on the same tokens."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scripts.lib.errors import largest
from scripts.lib.serving.trace import Arrival

if TYPE_CHECKING:
    from collage.serve.request import Event, IterationRecord, Stats
    from scripts.lib.serving.contenders.collage_engine import CollageEngine


def compare(
    engine: CollageEngine, arrivals: Sequence[Arrival], model: Path, threads: int
) -> Mapping[str, Any]:
    """The share of tokens that the original decoder would have chosen, too, and how near a tie the others are.

    All requests are there at once, so that prompts are computed in chunks beside tokens of other answers. The original
    gets the prompt and the engine's answer as one sequence, which tells what it would have chosen after each token.
    ``largest_gap`` is the most that a logit of a chosen token is below the largest one, as a share of that one's size,
    and ``largest_error`` that of log probabilities of all chosen tokens.
    """
    from collage.serve.decoder.original import OriginalDecoder

    answers = _answers(engine, arrivals)
    original = OriginalDecoder(model, threads)
    same = total = 0
    gap = error = 0.0
    for arrival, answer in zip(arrivals, answers, strict=True):
        tokens = [each.token for each in answer if each.token is not None]
        found = [each.logprobs.chosen for each in answer if each.logprobs is not None]
        rows = original.logits([*arrival.prompt, *tokens[:-1]])[-len(tokens) :].astype(np.float64)
        best, chosen = rows.max(1), rows[np.arange(len(tokens)), tokens]
        sums = np.log(np.exp(rows - best[:, None]).sum(1)) + best
        same += int(np.sum(chosen == best))
        total += len(tokens)
        gap = largest([gap, float(np.max((best - chosen) / np.maximum(np.abs(best), 1.0)))])
        error = largest([error, float(np.max(np.abs(np.array(found) - (chosen - sums))))])
    return {"tokens": total, "same_tokens": same / total, "largest_gap": gap, "largest_error": error}


def _answers(engine: CollageEngine, arrivals: Sequence[Arrival]) -> list[list[Event]]:
    from collage.serve.loop import Loop
    from collage.serve.request import Request
    from collage.serve.sampling import Sampling

    found: list[list[Event]] = [[] for _ in arrivals]
    left = set(range(len(arrivals)))
    ended = threading.Event()

    def deliver(events: list[Event], iteration: IterationRecord | None, stats: Stats) -> None:
        for each in events:
            found[each.id].append(each)
            if each.finish is not None:
                left.discard(each.id)
        if not left:
            ended.set()

    loop = Loop(engine.runner, engine.options, deliver)
    try:
        loop.submit(
            *(
                Request(
                    number,
                    each.prompt,
                    Sampling(max_tokens=each.tokens, temperature=0.0, ignore_eos=True, logprobs=0),
                )
                for number, each in enumerate(arrivals)
            )
        )
        ended.wait()
    finally:
        loop.close(drain=False)
    for each in found:
        if each[-1].error:
            raise RuntimeError(each[-1].error)
    return found
