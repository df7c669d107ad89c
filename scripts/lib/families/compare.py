"""Greedy answers of the engine, compared with ONNX Runtime on the exported file, token by token and logit by logit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collage.serve import Engine, EngineOptions, Runner, Sampling, Slice
from collage.serve.decoder.original import OriginalDecoder
from scripts.lib.errors import largest

TOLERANCE = 1e-3
"""The largest error of a logit, and the largest distance of two logits that counts as a tie.

It is a share of the row's largest logit, where that is above 1, as in Collage's own check of a decoder.
"""
LENGTHS = (3, 17, 40)
"""The tokens of the prompts: within a window, as long as one, and longer than an iteration."""
TOKENS = 12
"""The tokens of each answer."""


@dataclass(frozen=True)
class Comparison:
    """``problem`` is "" where all is right. ``error`` is the largest one of a logit, and ``ties`` are tokens that
    differ where the two likeliest are as likely.
    """

    problem: str
    error: float
    ties: int = 0


@dataclass
class _Recorder:
    """A runner that keeps all logits: of each sequence, by its first block, and of each number of tokens in it."""

    runner: Runner
    logits: dict[tuple[int, int], NDArray[np.float32]] = field(default_factory=dict)
    first_blocks: dict[int, int] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runner, name)

    def step(self, slices: Sequence[Slice]) -> NDArray[np.float32]:
        """Run one iteration."""
        found = self.runner.step(slices)
        for each in slices:
            if not each.start:
                self.first_blocks[each.token_ids[0]] = each.blocks[0]
        wanted = [each for each in slices if each.wants_logits]
        for each, row in zip(wanted, found, strict=True):
            self.logits[each.blocks[0], each.start + len(each.token_ids)] = row.copy()
        return found


def prompts(vocabulary: int, room: int) -> list[list[int]]:
    """The prompts, which fit into so much room with their answers. Each begins with another token."""
    rng = np.random.default_rng(0)
    lengths = [min(length, room - TOKENS) for length in LENGTHS]
    return [
        [3 + number, *rng.integers(3, vocabulary, length - 1).tolist()]
        for number, length in enumerate(lengths)
    ]


def compare(runner: Runner, original: OriginalDecoder) -> Comparison:
    """Answer all prompts together, and compare with the original, which runs each of them alone with its own cache.

    The original gets the engine's tokens, which are its own greedy ones as long as nothing is wrong. Raises what the
    engine raises.
    """
    recorder = _Recorder(runner)
    asked = prompts(runner.vocabulary, runner.max_length)
    sampling = Sampling(max_tokens=TOKENS, temperature=0.0, ignore_eos=True)
    with Engine(recorder, EngineOptions(prefix_caching=False)) as engine:
        streams = [engine.submit(prompt, sampling) for prompt in asked]
        answers = [stream.result().tokens for stream in streams]
    errors, ties, problem = [], 0, ""
    for prompt, answer in zip(asked, answers, strict=True):
        block = recorder.first_blocks[prompt[0]]
        cache, length, new = original.empty_cache(), 0, prompt
        for place, token in enumerate(answer):
            rows, cache = original.step(new, length, cache)
            length, new = length + len(new), [token]
            expected, found = rows[-1], recorder.logits[block, length]
            scale = max(1.0, float(np.max(np.abs(expected))))
            errors.append(float(np.max(np.abs(found - expected))) / scale)
            best = int(np.argmax(expected))
            behind = float(expected[best] - expected[token]) / scale
            ties += token != best and behind <= TOLERANCE
            if not behind <= TOLERANCE:
                problem = problem or (
                    f"token {place} after a prompt of {len(prompt)} is {token}, and {best} is likelier by {behind:.2g}"
                )
    error = largest(errors)
    if not problem and error > TOLERANCE:
        problem = f"a logit differs by {error:.2g}"
    return Comparison(problem, error, ties)
