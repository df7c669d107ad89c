"""An answer as its reader sees it: tokens become text, stop texts end it, and deltas come out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from collage.serve.request import Event, Finish
from collage.serve.sampler import Logprobs
from collage.serve.sampling import Sampling
from collage.serve.text import StopWatch
from collage.serve.tokenizer import Tokenizer


@dataclass(frozen=True)
class Delta:
    """What is new in an answer: text, and the tokens since the last delta. ``finish`` is set in the last one.

    Where there are ``logprobs``, ``offsets`` has for each token the characters of the answer before it. Parts of one
    character have the same.
    """

    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[Logprobs, ...] = ()
    finish: Finish | None = None
    error: str = ""
    offsets: tuple[int, ...] = ()


class Answer:
    """Collects the events of one request. It knows its text so far and what it has used."""

    def __init__(
        self, tokenizer: Tokenizer, sampling: Sampling, prompt_tokens: int, before: Sequence[int] = ()
    ) -> None:
        """``before`` are the tokens before the answer, or the last of them: they shape its first text."""
        self._watch = StopWatch(tokenizer, sampling.stop, before)
        self._pending: list[int] = []
        self._pending_logprobs: list[Logprobs] = []
        self._pending_offsets: list[int] = []
        self.prompt_tokens = prompt_tokens
        self.completion_tokens = 0
        self.cached_tokens = 0
        self.finish: Finish | None = None

    def add(self, event: Event) -> Delta | None:
        """Take an event in. Returns None when it shows nothing, or the answer has ended before it."""
        if self.finish is not None:
            return None
        self.cached_tokens = event.cached
        text, found, ends = "", False, event.finish is not None
        if event.token is not None:
            self.completion_tokens += 1
            self._pending.append(event.token)
            if event.logprobs is not None:
                self._pending_logprobs.append(event.logprobs)
                self._pending_offsets.append(self._watch.length)
            if event.cut or event.finish is not Finish.STOP:
                text, found = self._watch.add(event.token)
            # Otherwise this is a token that ends the answer, and no part of its text.
        if ends and not found:
            rest, found = self._watch.flush()
            text += rest
        self.finish = Finish.STOP if found else event.finish
        if not text and self.finish is None:
            return None
        delta = Delta(
            text,
            tuple(self._pending),
            tuple(self._pending_logprobs),
            self.finish,
            event.error,
            tuple(self._pending_offsets),
        )
        self._pending.clear()
        self._pending_logprobs.clear()
        self._pending_offsets.clear()
        return delta
