"""An answer as its reader sees it: tokens become whole characters, and stop texts end it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from collage.serve.request import Event, Finish
from collage.serve.sampling import Logprobs, Sampling
from collage.serve.tokenizer import BROKEN, Tokenizer

_MOST_HELD = 6
"""A character has four bytes at most, so more tokens than this with a broken end are broken for good."""
_CONTEXT = 5
"""The tokens before an answer that shape its first text, as many as vLLM takes."""
_MOST_CONTEXT = 24
"""The tokens that are taken where fewer begin within a character."""


class Detokenizer:
    """Decodes tokens one by one. A token may be part of a character, and its text may depend on the tokens before.

    ``before`` are tokens before the first one, of which the last few are decoded with it. Decoders of SentencePiece's
    kind leave out the blank before a token where nothing is before it.
    """

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        # Tokens that are shown already are decoded again, since they shape the text of the next ones.
        self._tokens = _context(tokenizer, before)
        self._shown = len(self._tokens)

    def add(self, token: int) -> str:
        if not self._tokenizer.has_text(token):
            return ""
        self._tokens.append(token)
        text, begins = self._new_text()
        if (not text or text.endswith(BROKEN)) and len(self._tokens) - self._shown < _MOST_HELD:
            return ""
        return self._show(text, begins)

    def flush(self) -> str:
        return self._show(*self._new_text())

    def _new_text(self) -> tuple[str, bool]:
        """The text that is not shown yet, and whether it begins with a character of its own."""
        before = self._tokenizer.decode(self._tokens[: self._shown])
        text = self._tokenizer.decode(self._tokens)
        begins = text.startswith(before)
        shown = len(before)
        if not begins:  # a character that had begun before is whole now; broken ones before it were shown
            shown = len(before.rstrip(BROKEN))
            while shown < len(before) and text[shown : shown + 1] == BROKEN:
                shown += 1
        return text[shown:], begins

    def _show(self, text: str, begins: bool) -> str:
        if begins or self._shown > _MOST_CONTEXT:
            del self._tokens[: self._shown]
        self._shown = len(self._tokens)
        return text


def _context(tokenizer: Tokenizer, before: Sequence[int]) -> list[int]:
    """The last tokens that have a text, from the beginning of a character on."""
    found = [each for each in before[-2 * _MOST_CONTEXT :] if tokenizer.has_text(each)]
    for count in range(_CONTEXT, min(len(found), _MOST_CONTEXT) + 1):
        text = tokenizer.decode(found[-count:]).rstrip(BROKEN)
        if text and BROKEN not in text:
            return found[-count:]
    return found[-_CONTEXT:]


class StopFinder:
    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""

    def add(self, text: str) -> tuple[str, bool]:
        """The text that is safe to show, and whether a stop text was found; it ends before that."""
        text = self._held + text
        self._held = ""
        found = [at for each in self._stops if (at := text.find(each)) >= 0]
        if found:
            return text[: min(found)], True
        held = max((_overlap(text, each) for each in self._stops), default=0)
        if held:
            text, self._held = text[:-held], text[-held:]
        return text, False

    def flush(self) -> str:
        """The text that was held back, as a stop text may have begun with it."""
        text, self._held = self._held, ""
        return text


class StopWatch:
    """Tells when tokens that come one by one have completed one of several texts."""

    def __init__(self, tokenizer: Tokenizer, stops: tuple[str, ...], before: Sequence[int] = ()) -> None:
        """``before`` are tokens before the first one, as a ``Detokenizer`` takes them."""
        self._detokenizer = Detokenizer(tokenizer, before)
        self._finder = StopFinder(stops)
        self.length = 0
        """The characters of all tokens so far, also of those whose text is held back; not those of half a character."""

    def add(self, token: int) -> tuple[str, bool]:
        """The text that is safe to show with this token, and whether a stop text was found; it ends before that."""
        text = self._detokenizer.add(token)
        self.length += len(text)
        return self._finder.add(text)

    def flush(self) -> tuple[str, bool]:
        """The text that was held back at the end, and whether a stop text was found in it."""
        text, found = self._finder.add(self._detokenizer.flush())
        return (text, found) if found else (text + self._finder.flush(), False)


def _overlap(text: str, stop: str) -> int:
    most = min(len(text), len(stop) - 1)
    return next((n for n in range(most, 0, -1) if text.endswith(stop[:n])), 0)


@dataclass(frozen=True)
class Output:
    """What is new in an answer: tokens, and the text that they complete. ``finish`` is set in the last one.

    ``error`` says why the answer has failed. If there are ``logprobs``, ``offsets`` has for each token the characters
    of the answer before it; parts of one character have the same.
    """

    tokens: tuple[int, ...] = ()
    text: str = ""
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

    def add(self, event: Event) -> Output | None:
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
        output = Output(
            tuple(self._pending),
            text,
            tuple(self._pending_logprobs),
            self.finish,
            event.error,
            tuple(self._pending_offsets),
        )
        self._pending.clear()
        self._pending_logprobs.clear()
        self._pending_offsets.clear()
        return output
