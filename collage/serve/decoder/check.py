"""Checking a compiled decoder as a whole: a mix of chunks and single tokens, against ONNX Runtime on the original."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from collage.core.library_text import library_text
from collage.core.temporary import TemporaryFolder
from collage.errors import ModelError
from collage.frontend.ort_session import session_options
from collage.frontend.read.apart import save_model
from collage.frontend.read.load import ModelSource
from collage.graph.dataflow import Array
from collage.serve.attention import BLOCK_TOKENS
from collage.serve.decoder.compiled import IDS, MASK, POSITIONS
from collage.serve.runner import Runner, Slice

_DTYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
}
"""The dtypes of inputs that a decoder may have, by ONNX Runtime's names."""


class OriginalDecoder:
    """The model as its author wrote it. It runs one sequence at a time, with its own cache if it has one."""

    def __init__(self, source: ModelSource, threads: int) -> None:
        """Raises ModelError if ONNX Runtime cannot load the model."""
        options = session_options()
        options.intra_op_num_threads = threads
        try:
            self._session = _session(source, options)
        except Exception as error:  # ONNX Runtime's exceptions share no base class but Exception
            raise ModelError(f"ONNX Runtime cannot load the decoder: {library_text(error)}") from error
        self._outputs = [each.name for each in self._session.get_outputs()]
        self._inputs = {each.name: each for each in self._session.get_inputs()}
        self.has_cache = any(name not in (IDS, POSITIONS, MASK) for name in self._inputs)

    def empty_cache(self) -> dict[str, Array]:
        """A cache without tokens, by the names of the inputs."""
        found: dict[str, Array] = {}
        for name, info in self._inputs.items():
            if name not in (IDS, POSITIONS, MASK):
                sizes = [1, *(size if isinstance(size, int) else 0 for size in info.shape[1:])]
                found[name] = np.zeros(sizes, _DTYPES[info.type])
        return found

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """The logits [token, vocabulary] of a whole sequence. Raises ModelError if it fails."""
        return self.step(tokens, 0, self.empty_cache())[0]

    def step(
        self, tokens: Sequence[int], start: int, cache: dict[str, Array]
    ) -> tuple[NDArray[np.float32], dict[str, Array]]:
        """The logits of new tokens after ``start`` others, and the cache with them, by the names of the inputs."""
        count = len(tokens)
        feeds: dict[str, Array] = {
            IDS: np.array([tokens], np.int64),
            POSITIONS: np.arange(start, start + count, dtype=np.int64)[None],
            MASK: np.ones((1, start + count), np.int64),
        }
        feeds = {
            name: value.astype(_DTYPES[self._inputs[name].type])
            for name, value in feeds.items()
            if name in self._inputs
        }
        try:
            logits, *presents = self._session.run(None, {**feeds, **cache})
        except Exception as error:  # ONNX Runtime's exceptions share no base class but Exception
            raise ModelError(f"ONNX Runtime cannot run the decoder: {library_text(error)}") from error
        return logits[0], dict(zip(cache, presents, strict=False))


def _session(source: ModelSource, options: ort.SessionOptions) -> ort.InferenceSession:
    providers = ["CPUExecutionProvider"]
    if isinstance(source, onnx.ModelProto):
        with TemporaryFolder("decoder") as folder:  # a large model has no bytes in one piece
            save_model(source, folder / "decoder.onnx")
            return ort.InferenceSession(str(folder / "decoder.onnx"), options, providers=providers)
    model = source if isinstance(source, bytes) else str(source)
    return ort.InferenceSession(model, options, providers=providers)


TOLERANCE = 1e-3
"""The largest error of a logit, or of its size where that is above 1."""
_LENGTHS = (75, 40)
"""The tokens of the sequences that are compared."""
_CHUNKS = (1, 5, 32, 3)


def check(runner: Runner, original: OriginalDecoder, name: str) -> float:
    """The largest error of the logits. Raises ModelError if it is beyond what float32 has.

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
