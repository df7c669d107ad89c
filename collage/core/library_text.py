"""The texts of libraries' exceptions, shortened so that they fit into one line for users."""

from __future__ import annotations

import re

_LONGEST = 300

_PLACES = re.compile(
    r"""/onnxruntime_src/\S+?:\d+\s+[\w:~<>]+\((?:[^()]|\([^()]*\))*\)(?:\s+const)?\s*
    |/onnxruntime_src/\S+\s*
    |(?:Exception\ from|failed\ at)\s+src/\S+:\d+:\s*
    |Check\ '[^']*'\s+""",
    re.VERBOSE,
)
"""Places in the libraries' own sources, which tell users nothing."""


def library_text(error: BaseException | str, limit: int = _LONGEST) -> str:
    """The text on one line of at most ``limit`` characters, without the places in the library's own sources."""
    text = " ".join(_PLACES.sub("", " ".join(str(error).split())).split())
    return text if len(text) <= limit else f"{text[: limit - 4].rstrip()} ..."
