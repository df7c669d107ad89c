"""Checking a compiled decoder as a whole: a mix of chunks and single tokens, against ONNX Runtime on the original."""

from __future__ import annotations

import numpy as np

from collage.errors import ModelError
from collage.serve.attention import BLOCK_TOKENS
from collage.serve.decoder.original import OriginalDecoder
from collage.serve.runner import Runner, Slice

TOLERANCE = 1e-3
"""The largest error of a logit, or of its size where that is above 1."""
_LENGTHS = (75, 40)
"""The tokens of the sequences that are compared."""
_CHUNKS = (1, 5, 32, 3)


def check(runner: Runner, original: OriginalDecoder, name: str) -> float:
    """The largest error of the logits. Raises ModelError where it is beyond what float32 has.

    This finds what recognition cannot see: masks that are not causal, windows and biases of attention.
    """
    worst = error_of(runner, original)
    if worst > TOLERANCE:
        raise ModelError(
            f"{name} cannot be served: computed token by token its logits differ by {worst:.2g} from ONNX Runtime's on "
            "the whole sequence. Perhaps its attention is not causal, or has a window or biases, or heads that are no "
            "neighbours share those of k and v, or positions are not counted from the first token of the sequence."
        )
    return worst


def error_of(runner: Runner, original: OriginalDecoder) -> float:
    """The largest error of a logit, as a share of the largest one of its row, or of 1 where that is more."""
    random = np.random.default_rng(0)
    lengths = [min(length, runner.max_length) for length in _LENGTHS]
    needed = sum(-(-length // BLOCK_TOKENS) for length in lengths)
    if needed > runner.block_count:
        lengths = [min(lengths[0], runner.block_count * BLOCK_TOKENS)]
    worst, first = 0.0, 0
    sequences = []
    for length in lengths:
        count = -(-length // BLOCK_TOKENS)
        tokens = random.integers(0, runner.vocabulary, length).tolist()
        sequences.append((tokens, tuple(range(first, first + count))))
        first += count
    expected = [original.logits(tokens) for tokens, _ in sequences]
    starts, turn = [0] * len(sequences), 0
    while any(start < length for start, length in zip(starts, lengths, strict=True)):
        slices, rows, room = [], [], runner.max_tokens
        for number, (tokens, blocks) in enumerate(sequences):
            chunk = _CHUNKS[(turn + number) % len(_CHUNKS)]
            part = tokens[starts[number] : starts[number] + min(chunk, room)]
            if part:
                room -= len(part)
                slices.append(Slice(tuple(part), starts[number], blocks, True))
                starts[number] += len(part)
                rows.append(expected[number][starts[number] - 1])
        turn += 1
        for found, row in zip(runner.step(slices), rows, strict=True):
            error = float(np.max(np.abs(found - row))) / max(1.0, float(np.max(np.abs(row))))
            worst = max(worst, error if np.isfinite(error) else np.inf)
    return worst
