"""The text of an answer while its tokens come: whole characters only, and nothing that a stop text may begin with."""

from __future__ import annotations

from collage.serve.tokenizer import Tokenizer

_BROKEN = "\N{REPLACEMENT CHARACTER}"
_MOST_HELD = 6
"""A character has four bytes at most, so more tokens than this with a broken end are broken for good."""


class Detokenizer:
    """Decodes tokens one by one. A token may be part of a character, and its text may depend on the tokens before."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._context = 0  # tokens from here on are decoded again, since they shape the text of the next ones
        self._shown = 0  # tokens up to here are in the text

    def add(self, token: int) -> str:
        """The text that this token completes, perhaps empty."""
        self._tokens.append(token)
        text = self._new_text()
        if text.endswith(_BROKEN) and len(self._tokens) - self._shown < _MOST_HELD:
            return ""
        return self._show(text)

    def flush(self) -> str:
        """The text of tokens that were held back."""
        return self._show(self._new_text())

    def _new_text(self) -> str:
        before = self._tokenizer.decode(self._tokens[self._context : self._shown])
        return self._tokenizer.decode(self._tokens[self._context :])[len(before) :]

    def _show(self, text: str) -> str:
        if text:
            self._context, self._shown = self._shown, len(self._tokens)
            del self._tokens[: self._context]
            self._shown -= self._context
            self._context = 0
        return text


class StopFinder:
    """Finds the first of several texts in a text that comes in pieces."""

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

    def __init__(self, tokenizer: Tokenizer, stops: tuple[str, ...]) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._finder = StopFinder(stops)

    def add(self, token: int) -> tuple[str, bool]:
        """The text that is safe to show with this token, and whether a stop text was found; it ends before that."""
        return self._finder.add(self._detokenizer.add(token))

    def flush(self) -> tuple[str, bool]:
        """The text that was held back at the end, and whether a stop text was found in it."""
        text, found = self._finder.add(self._detokenizer.flush())
        return (text, found) if found else (text + self._finder.flush(), False)


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of the text that the stop text begins with."""
    most = min(len(text), len(stop) - 1)
    return next((n for n in range(most, 0, -1) if text.endswith(stop[:n])), 0)
