"""vLLM's engine for CPUs, in this process."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from scripts.lib.serving.contender import (
    BFLOAT16,
    FLOAT32,
    Contender,
    MissingError,
    Note,
    Setup,
    serve_stepwise,
)
from scripts.lib.serving.trace import Arrival

_BATCHED_TOKENS = 256
_CACHE_GB = 2


class Vllm:
    """An engine that is asked for one iteration after another."""

    def __init__(self, setup: Setup) -> None:
        setup.require("vllm", FLOAT32, BFLOAT16)
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(_CACHE_GB)
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "0" if setup.threads == 1 else f"0-{setup.threads - 1}"
        os.environ["OMP_NUM_THREADS"] = str(setup.threads)  # else it takes one for some operators
        os.environ["VLLM_NO_USAGE_STATS"] = os.environ["HF_HUB_OFFLINE"] = "1"
        try:
            import vllm as library
        except ImportError as error:
            raise MissingError(f"vllm is not installed for this machine ({error})") from error
        self._library = library
        self._settings = {
            "dtype": "auto" if setup.defaults else setup.precision,
            "max_num_seqs": setup.running,
            "max_num_batched_tokens": _BATCHED_TOKENS,
        }
        self._engine = library.LLMEngine.from_engine_args(
            library.EngineArgs(
                model=str(setup.folder),
                enable_prefix_caching=False,
                enable_chunked_prefill=True,
                skip_tokenizer_init=True,
                disable_log_stats=True,
                **self._settings,
            )
        )
        self._known: dict[str, tuple[int, int]] = {}
        self._next = 0

    def facts(self) -> Mapping[str, Any]:
        """The version and the settings."""
        return {"version": self._library.__version__, **self._settings}

    def serve(self, arrivals: Sequence[Arrival], note: Note) -> None:
        """Serve the requests."""
        serve_stepwise(self, arrivals, note)

    def add(self, number: int, arrival: Arrival) -> None:
        """Take a request in."""
        parameters = self._library.SamplingParams(
            temperature=0.0, max_tokens=arrival.tokens, ignore_eos=True, detokenize=False
        )
        id = str(self._next)
        self._next += 1
        self._known[id] = number, 0
        self._engine.add_request(id, {"prompt_token_ids": list(arrival.prompt)}, parameters)

    def step(self) -> list[tuple[int, int]]:
        """Run an iteration."""
        found = []
        for output in self._engine.step():
            number, seen = self._known[output.request_id]
            tokens = output.outputs[0].token_ids
            found += [(number, int(token)) for token in tokens[seen:]]
            self._known[output.request_id] = number, len(tokens)
            if output.finished:
                del self._known[output.request_id]
        return found


def open_contender(name: str, setup: Setup) -> Contender:
    """The engine. Raises MissingError."""
    return Vllm(setup)
