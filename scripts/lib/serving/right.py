"""Greedy answers against the original decoder, which ONNX Runtime runs alone on the same tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scripts.lib.errors import largest
from scripts.lib.serving.trace import Arrival

if TYPE_CHECKING:
    from collage.serve.request import Event


def compare(
    arrivals: Sequence[Arrival], answers: Sequence[Sequence[Event]], model: Path, threads: int
) -> Mapping[str, Any]:
    """The share of tokens that the original decoder would have chosen, too, and how near a tie the others are.

    The original gets the prompt and the engine's answer as one sequence, and gives its choice after each token.
    ``largest_gap`` is the most that a logit of a chosen token is below the largest one, as a share of that one's size,
    and ``largest_error`` that of log probabilities of all chosen tokens.
    """
    from collage.serve.decoder.check import OriginalDecoder

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
