"""Collage's engine, and the same engine used as systems before Orca are: batches of requests, one after another."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.lib.serving.contender import (
    NO_TARGET_MS,
    REQUEST_LEVEL_BATCH,
    Contender,
    Note,
    Setup,
    cache_precision,
    serve_in_batches,
)
from scripts.lib.serving.static_batch import run_static_batch
from scripts.lib.serving.trace import MOST_TOKENS, Arrival, from_message

if TYPE_CHECKING:
    from collage.serve.request import Event, IterationRecord, Stats

_MOST_WAITING = 1 << 20


class CollageEngine:
    """The engine with its thread, without HTTP. Arrivals come from another thread."""

    def __init__(self, setup: Setup, itl_target_ms: float | None = None) -> None:
        from collage._version import __version__
        from collage.api import default_registry
        from collage.serve.attention import BLOCK_TOKENS
        from collage.serve.decoder.file import load_decoder
        from collage.serve.decoder.memory import free_bytes, has_room_for_own
        from collage.serve.decoder.runner import DecoderRunner
        from collage.serve.loop import Loop
        from collage.serve.options import EngineOptions
        from collage.serve.sampling import Sampling

        registry = default_registry()
        own = has_room_for_own(setup.module.stat().st_size, free_bytes())  # as `collage serve` has them
        compiled = load_decoder(setup.module, registry, share=not own)
        longest = min(MOST_TOKENS, compiled.max_length)
        blocks = setup.running * -(-longest // BLOCK_TOKENS)
        self._cache = cache_precision(setup.precision)
        self.runner = DecoderRunner(compiled, registry, blocks, cache=self._cache)
        self.options = EngineOptions(
            max_running=setup.running,
            max_waiting=_MOST_WAITING,
            prefix_caching=False,
            itl_target_ms=itl_target_ms,
        )
        self._error_of_logits = compiled.error
        self.version = __version__
        self._sampling = Sampling(temperature=0.0, ignore_eos=True)
        self._note: Note = _nothing
        self._first = 0
        self._left = 0
        self._error = ""
        self._changed = threading.Condition()
        self.loop = Loop(self.runner, self.options, self._deliver)

    def facts(self) -> Mapping[str, Any]:
        """The version and the sizes."""
        return {
            "version": self.version,
            "buckets": list(self.runner.buckets),
            "iteration_ms": {str(each): round(self.runner.cost_ms(each), 3) for each in self.runner.buckets},
            "running": self.options.max_running,
            "blocks": self.runner.block_count,
            "cache": self._cache,
            "error": self._error_of_logits,
        }

    def serve(self, arrivals: Sequence[Arrival], note: Note) -> None:
        """Submit the requests when they arrive, and wait for the last token."""
        start = time.monotonic()
        self._begin(len(arrivals), note)
        for at_s, some in groupby(enumerate(arrivals), lambda each: each[1].at_s):
            time.sleep(max(0.0, at_s - (time.monotonic() - start)))
            self._submit(some)
        self._wait()

    def alone(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """Orca's microbenchmark; see ``scripts.lib.serving.alone``."""
        from scripts.lib.serving.alone import measure

        return measure(self, from_message(message["arrivals"]), message["reverse"])

    def right(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """The answers against the original decoder's; see ``scripts.lib.serving.right``."""
        from scripts.lib.serving.right import compare

        return compare(self, from_message(message["arrivals"]), Path(message["model"]), self.runner.threads)

    @contextmanager
    def with_policy(self, policy: str, temperature: float = 0.0, top_p: float = 1.0) -> Iterator[None]:
        """Have another policy than the default one meanwhile, on the same runner, and answers that may be drawn."""
        from collage.serve.loop import Loop

        usual = self.loop, self._sampling
        self.loop = Loop(self.runner, replace(self.options, policy=policy), self._deliver)
        self._sampling = replace(self._sampling, temperature=temperature, top_p=top_p)
        try:
            yield
        finally:
            self.loop.close(drain=False)
            self.loop, self._sampling = usual

    def scheduler(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """The time of the scheduler; see ``scripts.lib.serving.scheduler``."""
        from scripts.lib.serving.scheduler import iteration_us

        return iteration_us(message["running"])

    def costs(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """What iterations cost; see ``scripts.lib.serving.iteration_costs``."""
        from scripts.lib.serving.iteration_costs import measure_costs

        return measure_costs(self.runner).as_message()

    def run_batch(self, batch: Sequence[tuple[int, Arrival]], note: Note) -> None:
        """Serve requests that are there at once."""
        self._begin(len(batch), lambda number, token: note(batch[number][0], token))
        self._submit(enumerate(each for _, each in batch))
        self._wait()

    def _begin(self, count: int, note: Note) -> None:
        self._note, self._left = note, count

    def _submit(self, arrivals: Iterable[tuple[int, Arrival]]) -> None:
        """Send requests that arrive together, each with its number."""
        from collage.serve.request import Request

        self.loop.submit(
            *(
                Request(self._first + number, each.prompt, replace(self._sampling, max_tokens=each.tokens))
                for number, each in arrivals
            )
        )

    def _wait(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._left or self._error)
        self._first += 1 << 32  # numbers of the next run are no numbers of this one
        if self._error:
            raise RuntimeError(self._error)

    def _deliver(self, events: list[Event], iteration: IterationRecord | None, stats: Stats) -> None:
        ended = 0
        for event in events:
            self._error = self._error or event.error
            if event.token is not None:
                self._note(event.id - self._first, event.token)
            ended += event.finish is not None
        if ended:
            with self._changed:
                self._left -= ended
                self._changed.notify()


class RequestLevel:
    """Batches of at most eight requests, none of which begins before the last one has ended.

    It is a generous form: answers are handed over token by token, those that have ended cost nothing more, and requests
    whose prompts are computed have their tokens in the same iterations as the prompts of others.
    """

    def __init__(self, engine: CollageEngine) -> None:
        self._engine = engine

    def facts(self) -> Mapping[str, Any]:
        """Those of the engine, and the size of a batch."""
        return {**self._engine.facts(), "running": REQUEST_LEVEL_BATCH}

    def serve(self, arrivals: Sequence[Arrival], note: Note) -> None:
        """Serve the requests in batches."""
        serve_in_batches(lambda batch: self._engine.run_batch(batch, note), REQUEST_LEVEL_BATCH, arrivals)


class WholeBatches(RequestLevel):
    """Request-level scheduling as Orca's section 3 (C1) describes it: all answers of a batch come with the longest.

    It is generous in that prompts of different lengths are computed whole, and at once. With ``shortest_first`` they
    are not: it is then what the paper's Figure 10 compares with.
    """

    def __init__(self, engine: CollageEngine, *, shortest_first: bool) -> None:
        super().__init__(engine)
        self._shortest_first = shortest_first

    def serve(self, arrivals: Sequence[Arrival], note: Note) -> None:
        """Serve the requests in batches."""

        def run(batch: list[tuple[int, Arrival]]) -> None:
            taken: list[tuple[int, int]] = []
            run_static_batch(
                self._engine.runner,
                [each for _, each in batch],
                lambda place, token: taken.append((place, token)),
                shortest_first=self._shortest_first,
            )
            for place, token in taken:
                note(batch[place][0], token)

        serve_in_batches(run, REQUEST_LEVEL_BATCH, arrivals)


def open_contender(name: str, setup: Setup) -> Contender:
    """The engine, or request-level scheduling on it in one of three forms."""
    if name == "request-level":
        return RequestLevel(CollageEngine(setup, itl_target_ms=NO_TARGET_MS))
    engine = CollageEngine(setup)
    if name == "collage":
        return engine
    return WholeBatches(engine, shortest_first=name == "shortest-first")


def _nothing(number: int, token: int) -> None:
    """Take a token of a run that has ended."""
