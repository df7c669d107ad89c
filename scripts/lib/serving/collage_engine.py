"""Collage's engine with its thread, without HTTP."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scripts.lib.errors import largest
from scripts.lib.serving.process import Setup
from scripts.lib.serving.trace import MOST_TOKENS, Arrival

if TYPE_CHECKING:
    from collage.serve.decoder.runner import DecoderRunner
    from collage.serve.request import Event, IterationRecord, Stats

Take = Callable[[int, "Event"], None]
"""Takes the number of a request and what has come of it."""
_MOST_WAITING = 1 << 20


class CollageEngine:
    """The engine. Arrivals come from another thread."""

    def __init__(self, setup: Setup) -> None:
        from collage.serve.loop import Loop
        from collage.serve.options import EngineOptions

        self._runner, self.facts = open_runner(setup)
        options = EngineOptions(max_running=setup.running, max_waiting=_MOST_WAITING)
        self._first = self._left = 0
        self._take: Take = lambda number, event: None
        self._error = ""
        self._changed = threading.Condition()
        self._loop = Loop(self._runner, options, self._deliver)

    def serve(self, arrivals: Sequence[Arrival], note: Callable[[int, int], None]) -> None:
        """Submit the requests when they arrive, and wait for the last token."""

        def take(number: int, event: Event) -> None:
            if event.token is not None:
                note(number, event.token)

        self._run(arrivals, take)

    def right(self, message: tuple[Sequence[Arrival], Path]) -> Mapping[str, Any]:
        """The answers to requests against those of the original decoder in a file, which ONNX Runtime runs alone.

        The original gets the prompt and the engine's answer as one sequence, and gives its choice after each token.
        ``largest_gap`` is the most that a logit of a chosen token is below the largest one, as a share of that one's
        size, and ``largest_error`` that of log probabilities of all chosen tokens.
        """
        from collage.serve.decoder.check import OriginalDecoder

        arrivals, model = message
        answers: list[list[Event]] = [[] for _ in arrivals]
        self._run(arrivals, lambda number, event: answers[number].append(event), logprobs=0)
        original = OriginalDecoder(model, self._runner.threads)
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

    def _run(self, arrivals: Sequence[Arrival], take: Take, logprobs: int | None = None) -> None:
        from collage.serve.request import Request
        from collage.serve.sampling import Sampling

        start = time.monotonic()
        self._take, self._left = take, len(arrivals)
        for at_s, some in groupby(enumerate(arrivals, self._first), lambda each: each[1].at_s):
            time.sleep(max(0.0, at_s - (time.monotonic() - start)))
            self._loop.submit(
                *(
                    Request(
                        number,
                        each.prompt,
                        Sampling(max_tokens=each.tokens, temperature=0.0, ignore_eos=True, logprobs=logprobs),
                    )
                    for number, each in some
                )
            )
        with self._changed:
            self._changed.wait_for(lambda: not self._left or self._error)
        self._first += len(arrivals)
        if self._error:
            raise RuntimeError(self._error)

    def _deliver(self, events: list[Event], iteration: IterationRecord | None, stats: Stats) -> None:
        ended = 0
        for event in events:
            self._error = self._error or event.error
            self._take(event.id - self._first, event)
            ended += event.finish is not None
        if ended:
            with self._changed:
                self._left -= ended
                self._changed.notify()


def open_runner(setup: Setup) -> tuple[DecoderRunner, Mapping[str, Any]]:
    """The runner of Collage's file, and its version and sizes."""
    from collage._version import __version__
    from collage.api import default_registry
    from collage.serve.attention import BLOCK_TOKENS
    from collage.serve.decoder.file import load_decoder
    from collage.serve.decoder.memory import free_bytes, has_room_for_own
    from collage.serve.decoder.runner import DecoderRunner

    registry = default_registry()
    own = has_room_for_own(setup.module.stat().st_size, free_bytes())  # as `collage serve` has them
    compiled = load_decoder(setup.module, registry, share=not own)
    blocks = setup.running * -(-min(MOST_TOKENS, compiled.max_length) // BLOCK_TOKENS)
    runner = DecoderRunner(compiled, registry, blocks, cache=setup.cache)
    return runner, {
        "version": __version__,
        "iteration_ms": {str(each): round(runner.cost_ms(each), 3) for each in runner.buckets},
        "running": setup.running,
        "cache": setup.cache,
        "error": compiled.error,
    }
