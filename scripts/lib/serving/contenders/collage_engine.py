"""Collage's engine with its thread, without HTTP."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.lib.serving.contender import Contender, Note, Setup
from scripts.lib.serving.right import compare
from scripts.lib.serving.trace import MOST_TOKENS, Arrival, from_message

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

        self._runner, self._facts = open_runner(setup)
        options = EngineOptions(max_running=setup.running, max_waiting=_MOST_WAITING)
        self._first = self._left = 0
        self._take: Take = lambda number, event: None
        self._error = ""
        self._changed = threading.Condition()
        self._loop = Loop(self._runner, options, self._deliver)

    def facts(self) -> Mapping[str, Any]:
        """The version and the sizes."""
        return self._facts

    def serve(self, arrivals: Sequence[Arrival], note: Note) -> None:
        """Submit the requests when they arrive, and wait for the last token."""

        def take(number: int, event: Event) -> None:
            if event.token is not None:
                note(number, event.token)

        self._run(arrivals, take)

    def right(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """The answers against the original decoder's; see ``scripts.lib.serving.right``."""
        arrivals = from_message(message["arrivals"])
        answers: list[list[Event]] = [[] for _ in arrivals]
        self._run(arrivals, lambda number, event: answers[number].append(event), logprobs=0)
        return compare(arrivals, answers, Path(message["model"]), self._runner.threads)

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


def open_contender(name: str, setup: Setup) -> Contender:
    """The engine."""
    return CollageEngine(setup)
