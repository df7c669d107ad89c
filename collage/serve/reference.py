"""A small decoder in numpy with a real paged cache: the runner of tests, and of trying the server out."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collage.core.memory import physical_bytes
from collage.errors import CollageError
from collage.serve.runner import Slice
from collage.serve.tokenizer import read_json

Array = NDArray[np.float64]

REFERENCE_FILE = "reference.json"
_BYTES = 8
_LARGEST_SHARE = 0.5


@dataclass(frozen=True)
class ReferenceConfig:
    """The sizes of the decoder, which has random weights from ``seed``, and of its cache.

    ``step_ms`` is slept in each iteration, as a larger model would take it, and ``nan_token`` is a token after which
    the logits are not numbers; both are for tests of the server.
    """

    layers: int = 2
    width: int = 64
    heads: int = 4
    kv_heads: int = 2
    vocabulary: int = 320
    max_length: int = 512
    max_tokens: int = 256
    block_tokens: int = 16
    block_count: int = 256
    seed: int = 0
    step_ms: float = 0.0
    workers: int = 1
    nan_token: int | None = None


class ReferenceRunner:
    """A pre-norm decoder with grouped heads and learned positions, in float64, so that batching changes no choice."""

    def __init__(self, config: ReferenceConfig) -> None:
        self.config = config
        self.block_tokens = config.block_tokens
        self.block_count = config.block_count
        self.max_tokens = config.max_tokens
        self.max_length = config.max_length
        self.vocabulary = config.vocabulary
        self.workers = config.workers
        self._head = config.width // config.heads
        random = np.random.default_rng(config.seed)
        narrow = config.kv_heads * self._head
        wide = config.width

        def weights(*shape: int) -> Array:
            return np.asarray(random.standard_normal(shape) / np.sqrt(shape[0]))

        self._embedding = random.standard_normal((config.vocabulary, wide))
        self._positions = random.standard_normal((config.max_length, wide))
        self._layers = [
            (
                weights(wide, wide + 2 * narrow),
                weights(wide, wide),
                weights(wide, 4 * wide),
                weights(4 * wide, wide),
            )
            for _ in range(config.layers)
        ]
        self._output = weights(wide, config.vocabulary) * 4
        self._check_memory(narrow)
        shape = (config.layers, config.block_count * config.block_tokens, config.kv_heads, self._head)
        self._keys, self._values = np.zeros(shape), np.zeros(shape)
        self._lock = threading.Lock()
        self._costs: dict[int, float] = {}

    def step(self, slices: Sequence[Slice]) -> NDArray[np.float32]:
        with self._lock:
            logits = self._step(slices)
        if self.config.step_ms:
            time.sleep(self.config.step_ms / 1e3)
        return logits

    def cost_ms(self, tokens: int) -> float:
        """The measured time of an iteration: the fastest of three on the first blocks, which are overwritten later."""
        if tokens not in self._costs:
            length = min(self.max_length, self.block_count * self.block_tokens)
            slices = []
            for start in range(0, tokens, length):
                ids = (0,) * min(length, tokens - start)
                blocks = range(-(-len(ids) // self.block_tokens))
                slices.append(Slice(ids, 0, tuple(blocks), wants_logits=True))
            times = []
            for _ in range(3):
                begin = time.perf_counter()
                self._step(slices)
                times.append((time.perf_counter() - begin) * 1e3)
            self._costs[tokens] = min(times) + self.config.step_ms
        return self._costs[tokens]

    def close(self) -> None:
        pass

    def _check_memory(self, narrow: int) -> None:
        block = 2 * self.config.layers * self.block_tokens * narrow * _BYTES
        most = int(physical_bytes() * _LARGEST_SHARE) // block
        if self.block_count > most:
            raise CollageError(
                f"{self.block_count} blocks of the cache were asked for; {most} fit into this machine's memory."
            )

    def _step(self, slices: Sequence[Slice]) -> NDArray[np.float32]:
        for each in slices:
            self._check(each)
        ids = np.array([token for each in slices for token in each.token_ids])
        positions = np.concatenate([np.arange(each.start, each.start + len(each.token_ids)) for each in slices])
        slots = [self._slots(each) for each in slices]
        x = self._embedding[ids] + self._positions[positions]
        for layer in range(self.config.layers):
            x = self._layer(layer, x, slices, slots)
        ends = np.cumsum([len(each.token_ids) for each in slices]) - 1
        last = [end for each, end in zip(slices, ends, strict=True) if each.wants_logits]
        logits = (_normal(x[last]) @ self._output).astype(np.float32)
        if self.config.nan_token is not None:
            logits[ids[last] == self.config.nan_token] = np.nan
        return logits

    def _check(self, each: Slice) -> None:
        """Assert what the engine promises, since a wrong block would read another's tokens without a word."""
        end = each.start + len(each.token_ids)
        assert each.token_ids
        assert end <= self.max_length
        assert end <= len(each.blocks) * self.block_tokens
        assert len(set(each.blocks)) == len(each.blocks)
        assert all(0 <= block < self.block_count for block in each.blocks)

    def _slots(self, each: Slice) -> NDArray[np.intp]:
        base = np.array(each.blocks)[:, None] * self.block_tokens + np.arange(self.block_tokens)
        return base.reshape(-1)[: each.start + len(each.token_ids)]

    def _layer(self, layer: int, x: Array, slices: Sequence[Slice], slots: Sequence[NDArray[np.intp]]) -> Array:
        config, head = self.config, self._head
        qkv, out, up, down = self._layers[layer]
        projected = _normal(x) @ qkv
        narrow = config.kv_heads * head
        q = projected[:, : config.width].reshape(-1, config.kv_heads, config.heads // config.kv_heads, head)
        k = projected[:, config.width : config.width + narrow].reshape(-1, config.kv_heads, head)
        v = projected[:, config.width + narrow :].reshape(-1, config.kv_heads, head)
        attended = np.empty_like(q)
        at = 0
        rows = []
        for each, where in zip(slices, slots, strict=True):
            span = slice(at, at + len(each.token_ids))
            self._keys[layer, where[each.start :]] = k[span]
            self._values[layer, where[each.start :]] = v[span]
            rows.append(span)
            at = span.stop
        for each, where, span in zip(slices, slots, rows, strict=True):
            keys, values = self._keys[layer, where], self._values[layer, where]
            scores = np.einsum("tgrh,sgh->grts", q[span], keys) / np.sqrt(head)
            reach = np.arange(each.start, len(where))
            scores[..., np.arange(len(where)) > reach[:, None]] = -np.inf
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            weights /= weights.sum(axis=-1, keepdims=True)
            attended[span] = np.einsum("grts,sgh->tgrh", weights, values)
        x = x + attended.reshape(len(x), config.width) @ out
        return np.asarray(x + np.maximum(_normal(x) @ up, 0) @ down)


def _normal(x: Array) -> Array:
    return np.asarray(x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6))


def open_reference(folder: Path, block_count: int | None = None) -> ReferenceRunner:
    """The decoder that ``reference.json`` in a folder describes. Raises CollageError when it describes none."""
    found: dict[str, Any] = read_json(folder / REFERENCE_FILE)
    if block_count is not None:
        found["block_count"] = block_count
    try:
        return ReferenceRunner(ReferenceConfig(**found))
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise CollageError(f"{folder / REFERENCE_FILE} describes no decoder: {error}.") from error
