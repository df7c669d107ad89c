"""Text from files and libraries on its way to a terminal, which obeys some characters instead of showing them."""

from __future__ import annotations

import unicodedata

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_UNSHOWN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
"""Unicode's categories of what is not seen: control characters, directions of writing, halves of pairs, line ends."""


def printable(text: str, kept: str = "") -> str:
    """The text with every character replaced that a terminal would obey, or that has no shape; not those ``kept``."""
    if text.isprintable():
        return text
    return "".join(
        each if each in kept or unicodedata.category(each) not in _UNSHOWN else _REPLACEMENT for each in text
    )
