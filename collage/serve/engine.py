"""The engine's interface in Python, without HTTP."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType

from collage.errors import CollageError, InputError
from collage.serve.loop import ClosedError, Loop
from collage.serve.options import EngineOptions
from collage.serve.request import Event, Finish, IterationRecord, RefusedError, Request, Stats, answers_to
from collage.serve.runner import Runner
from collage.serve.sampling import Logprobs, Sampling
from collage.serve.text import Answer, Output
from collage.serve.tokenizer import DecimalTokenizer, Tokenizer


@dataclass(frozen=True)
class Completion:
    """A whole answer. ``cached_tokens`` of the ``prompt_tokens`` were found in the cache."""

    tokens: tuple[int, ...]
    text: str
    logprobs: tuple[Logprobs, ...]
    finish: Finish
    prompt_tokens: int
    cached_tokens: int


class BusyError(CollageError):
    """The engine has as many requests as its options allow; try again when some have ended."""


class Stream:
    """The answer to a request, as it comes. It is read by one thread, and may be cancelled by another."""

    def __init__(self, id: int, answer: Answer, loop: Loop) -> None:
        self.id = id
        self._answer = answer
        self._loop = loop
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def __iter__(self) -> Iterator[Output]:
        """Yield outputs until the answer ends. Raises CollageError when the request fails."""
        while self._answer.finish is None:
            output = self._answer.add(self._events.get())
            if output is None:
                continue
            if output.finish is Finish.FAILED:
                raise CollageError(f"{output.error}.")
            yield output

    def result(self) -> Completion:
        """Wait for the rest of the answer, and return what was not read yet together with it."""
        outputs = list(self)
        finish = self._answer.finish
        assert finish is not None
        return Completion(
            tuple(token for each in outputs for token in each.tokens),
            "".join(each.text for each in outputs),
            tuple(logprobs for each in outputs for logprobs in each.logprobs),
            finish,
            self._answer.prompt_tokens,
            self._answer.cached_tokens,
        )

    def cancel(self) -> None:
        """Let the request go. Its blocks are free after the iteration that runs now."""
        self._loop.cancel(self.id)


class Engine:
    """Runs requests on a runner, many at a time, in a thread of its own.

    A prompt is a text, if there is a tokenizer, or token ids. Use it in a ``with`` block, or close it.
    """

    def __init__(
        self, runner: Runner, options: EngineOptions | None = None, tokenizer: Tokenizer | None = None
    ) -> None:
        self._tokenizer: Tokenizer = tokenizer or DecimalTokenizer()
        self._streams: dict[int, Stream] = {}
        self._lock = threading.Lock()
        self._ids = itertools.count()
        self._loop = Loop(runner, options or EngineOptions(), self._deliver, self._tokenizer)

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(drain=error is None)

    def submit(
        self,
        prompt: str | Sequence[int],
        sampling: Sampling | None = None,
        *,
        priority: int = 0,
        timeout_s: float | None = None,
        cache_salt: str = "",
    ) -> Stream:
        """Send a request. Raises InputError when it can never be served, and BusyError when too many wait.

        ``priority`` is lower for what matters more: each step is worth ten seconds of waiting. ``timeout_s`` bounds the
        time until the answer is complete, in seconds. Only requests with the same ``cache_salt`` share blocks.
        """
        return self._submit(self._request(prompt, sampling, priority, timeout_s, cache_salt))[0]

    def submit_all(
        self,
        prompt: str | Sequence[int],
        sampling: Sampling,
        n: int,
        *,
        priority: int = 0,
        timeout_s: float | None = None,
        cache_salt: str = "",
    ) -> list[Stream]:
        """Send a request for ``n`` answers, which share the blocks of the prompt: all of them or none.

        Seeds count up from the one given, and go on with 0 after 2**64 - 1. The other parameters and the errors are
        those of ``submit``.
        """
        if not 1 <= n <= self._loop.most_open:
            raise InputError(f"n is {n}; it must be from 1 to {self._loop.most_open}, as many as this engine takes.")
        first = self._request(prompt, sampling, priority, timeout_s, cache_salt)
        return self._submit(*answers_to(first, n, lambda: next(self._ids)))

    def stats(self) -> Stats:
        return self._loop.stats()

    def close(self, *, drain: bool = True) -> None:
        """Finish all requests, or cancel them, and end the thread. The runner is not closed."""
        self._loop.close(drain=drain)

    def check(self) -> None:
        self._loop.check()

    def _request(
        self,
        prompt: str | Sequence[int],
        sampling: Sampling | None,
        priority: int,
        timeout_s: float | None,
        cache_salt: str,
    ) -> Request:
        tokens = self._tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        return Request(
            next(self._ids),
            tuple(tokens),
            sampling or Sampling(),
            priority=priority,
            timeout_s=timeout_s,
            cache_salt=cache_salt,
        )

    def _submit(self, *requests: Request) -> list[Stream]:
        streams = [
            Stream(each.id, Answer(self._tokenizer, each.sampling, len(each.prompt), each.prompt), self._loop)
            for each in requests
        ]
        with self._lock:
            self._streams.update((each.id, each) for each in streams)
        try:
            self._loop.submit(*requests)
        except BaseException as error:
            with self._lock:
                for each in streams:
                    del self._streams[each.id]
            if isinstance(error, RefusedError):
                raise BusyError("the engine has as many requests as it may have; wait until some end.") from error
            if isinstance(error, ClosedError):
                raise CollageError("the engine is closed; make a new one.") from error
            raise
        return streams

    def _deliver(self, events: list[Event], iteration: IterationRecord | None, stats: Stats) -> None:
        for event in events:
            with self._lock:
                ended = event.finish is not None
                stream = self._streams.pop(event.id, None) if ended else self._streams.get(event.id)
            if stream is not None:
                stream._events.put(event)
