"""llama.cpp by llama-cpp-python, with the loop of llama.cpp's server: one token of each stream, then prompts.

The server that comes with llama-cpp-python serves one request at a time, so the loop is that of ``llama-server``
(``update_slots``), over the same functions of the library.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scripts.lib.serving.contender import (
    FLOAT32,
    INT8,
    Contender,
    MissingError,
    Note,
    Setup,
    serve_stepwise,
)
from scripts.lib.serving.formats.gguf_file import write_gguf
from scripts.lib.serving.trace import MOST_TOKENS, Arrival

_BATCH, _PHYSICAL_BATCH = 2048, 512
"""The defaults of llama-server: tokens of an iteration, and those that are computed at a time."""


@dataclass
class _Slot:
    """A request that runs: its tokens that are not computed yet, and the position of the first of them."""

    number: int
    tokens: list[int]
    left: int
    position: int = 0


class LlamaCpp:
    """A context with a sequence for each slot."""

    def __init__(self, setup: Setup) -> None:
        setup.require("llama.cpp", FLOAT32, INT8)
        try:
            import llama_cpp as library
        except ImportError as error:
            raise MissingError("llama-cpp-python is not installed") from error
        self._library = library
        library.llama_backend_init()
        parameters = library.llama_model_default_params()
        path = write_gguf(setup.folder, eight_bits=setup.precision == INT8)
        model = library.llama_model_load_from_file(str(path).encode(), parameters)
        if not model:
            raise MissingError("llama.cpp cannot load the model")
        self._words = library.llama_vocab_n_tokens(library.llama_model_get_vocab(model))
        context = library.llama_context_default_params()
        context.n_ctx = MOST_TOKENS * setup.running
        context.n_batch, context.n_ubatch = _BATCH, _PHYSICAL_BATCH
        context.n_seq_max = setup.running
        context.n_threads = context.n_threads_batch = setup.threads
        context.kv_unified = True
        if not setup.defaults:
            context.type_k = context.type_v = library.GGML_TYPE_F32
        self._context = library.llama_init_from_model(model, context)
        if not self._context:
            raise MissingError("llama.cpp cannot make a context")
        self._batch = library.llama_batch_init(_BATCH, 0, 1)
        self._slots: list[_Slot | None] = [None] * setup.running
        self._waiting: list[tuple[int, Arrival]] = []
        self._facts = {
            "version": library.__version__,
            "slots": setup.running,
            "batch": _BATCH,
            "weights": "Q8_0" if setup.precision == INT8 else "float32",
            "cache": "float16" if setup.defaults else "float32",
        }

    def facts(self) -> Mapping[str, Any]:
        """The version and the settings."""
        return self._facts

    def serve(self, arrivals: Sequence[Arrival], note: Note) -> None:
        """Serve the requests."""
        serve_stepwise(self, arrivals, note)

    def add(self, number: int, arrival: Arrival) -> None:
        """Let a request wait for a slot."""
        self._waiting.append((number, arrival))

    def step(self) -> list[tuple[int, int]]:
        """Run an iteration."""
        for place, slot in enumerate(self._slots):
            if slot is None and self._waiting:
                number, arrival = self._waiting.pop(0)
                self._slots[place] = _Slot(number, list(arrival.prompt), arrival.tokens)
        rows = self._fill()
        status = self._library.llama_decode(self._context, self._batch)
        if status:
            raise RuntimeError(f"llama_decode returned {status}")
        found = []
        for place, row in rows:
            slot = self._slots[place]
            assert slot is not None
            logits = self._library.llama_get_logits_ith(self._context, row)
            address = ctypes.cast(logits, ctypes.POINTER(ctypes.c_float))
            token = int(np.argmax(np.ctypeslib.as_array(address, (self._words,))))
            found.append((slot.number, token))
            slot.tokens = [token]
            slot.left -= 1
            if not slot.left:
                self._library.llama_memory_seq_rm(
                    self._library.llama_get_memory(self._context), place, -1, -1
                )
                self._slots[place] = None
        return found

    def _fill(self) -> list[tuple[int, int]]:
        """Put tokens into the batch. Returns the slots that get a token, with their rows."""
        batch, count = self._batch, 0
        rows: list[tuple[int, int]] = []
        streams = [i for i, each in enumerate(self._slots) if each is not None and len(each.tokens) == 1]
        prompts = [i for i, each in enumerate(self._slots) if each is not None and len(each.tokens) > 1]
        for place in (*streams, *prompts):
            slot = self._slots[place]
            assert slot is not None
            taken = slot.tokens[: _BATCH - count]
            for token in taken:
                batch.token[count] = token
                batch.pos[count] = slot.position
                batch.n_seq_id[count] = 1
                batch.seq_id[count][0] = place
                batch.logits[count] = 0
                slot.position += 1
                count += 1
            del slot.tokens[: len(taken)]
            if taken and not slot.tokens:
                batch.logits[count - 1] = 1
                rows.append((place, count - 1))
        batch.n_tokens = count
        return rows


def open_contender(name: str, setup: Setup) -> Contender:
    """The context with its loop. Raises MissingError."""
    return LlamaCpp(setup)
