"""Text that comes token by token is the text of all tokens, and nothing of a stop text is shown."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from collage.serve.text import Detokenizer, StopFinder
from collage.serve.tokenizer import BROKEN, DecimalTokenizer


class ByteTokenizer(DecimalTokenizer):
    """A token is a byte of UTF-8; 256 is a special token without a text."""

    def decode(self, tokens: object) -> str:
        return bytes(each for each in tokens if each < 256).decode(errors="replace")  # type: ignore[attr-defined]


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30))
def test_whole_characters_come_out(text: str) -> None:
    detokenizer = Detokenizer(ByteTokenizer())
    parts = [detokenizer.add(byte) for byte in text.encode()]
    if "\N{REPLACEMENT CHARACTER}" not in text:
        assert not any("\N{REPLACEMENT CHARACTER}" in each for each in parts)
        assert "".join(parts) == text
    assert "".join(parts) + detokenizer.flush() == text


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 256), max_size=60))
def test_broken_texts_come_out_too(tokens: list[int]) -> None:
    """Bytes that are no UTF-8 are shown as such, and are not held back for ever."""
    detokenizer = Detokenizer(ByteTokenizer())
    held = 0
    for token in tokens:
        held = 0 if detokenizer.add(token) else held + (token < 256)
        assert held <= 6
    detokenizer.flush()
    assert detokenizer.flush() == ""


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from([0x41, 0x80, 0xA9, 0xC3, 0xE2, 0x82, 256]), max_size=40))
def test_whole_characters_come_once_between_broken_ones(tokens: list[int]) -> None:
    """What is shown as broken may be more than in the end, and all else is what the whole text has."""
    detokenizer = Detokenizer(ByteTokenizer())
    shown = "".join([*map(detokenizer.add, tokens), detokenizer.flush()])
    whole = ByteTokenizer().decode(tokens)
    assert shown.replace(BROKEN, "") == whole.replace(BROKEN, "")
    assert whole.count(BROKEN) <= shown.count(BROKEN) <= len(tokens)


def test_what_is_broken_is_shown_once() -> None:
    detokenizer = Detokenizer(ByteTokenizer())
    parts = [detokenizer.add(byte) for byte in (0x80, 0x80, 0x80, 0x80, 0x80, 0xC3, 0xA9)]
    assert [each for each in parts if each] == [6 * BROKEN, "\u00e9"]


@settings(max_examples=300, deadline=None)
@given(
    st.text("ab", max_size=30),
    st.lists(st.text("ab", min_size=1, max_size=5), max_size=3),
    st.lists(st.integers(0, 30), max_size=10),
)
def test_stop_texts_are_found_wherever_pieces_end(text: str, stops: list[str], cuts: list[int]) -> None:
    ends = [0, *sorted(min(each, len(text)) for each in cuts), len(text)]
    finder = StopFinder(tuple(stops))
    shown = ""
    for start, end in pairwise(ends):
        piece, found = finder.add(text[start:end])
        shown += piece
        if found:
            break
    else:
        shown += finder.flush()
    # The first piece in which a stop text is complete ends the text, before the first stop text in it.
    complete = [end for end in ends[1:] if any(each in text[:end] for each in stops)]
    if complete:
        seen = text[: complete[0]]
        assert shown == seen[: min(seen.find(each) for each in stops if each in seen)]
    else:
        assert shown == text
