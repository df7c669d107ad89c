"""Making text from files and libraries safe for a terminal, which obeys some characters instead of showing them."""

from __future__ import annotations

import unicodedata

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_UNSHOWN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
"""Unicode's categories of invisible characters: control, format, surrogate, private use, and line separators."""


def printable(text: str, kept: str = "") -> str:
    """The text with all invisible characters replaced, except those in ``kept``."""
    if text.isprintable():
        return text
    return "".join(
        each if each in kept or unicodedata.category(each) not in _UNSHOWN else _REPLACEMENT for each in text
    )
