"""The texts of libraries' exceptions, shortened so that they fit into one line for users."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

_LONGEST = 300

_PLACES = re.compile(
    r"""/onnxruntime_src/\S+?:\d+\s+[\w:~<>]+\((?:[^()]|\([^()]*\))*\)(?:\s+const)?\s*
    |/onnxruntime_src/\S+\s*
    |(?:Exception\ from|failed\ at)\s+src/\S+:\d+:\s*
    |Check\ '[^']*'\s+""",
    re.VERBOSE,
)
"""Places in the libraries' own sources, which tell users nothing."""


def raised(error: BaseException) -> str:
    """An exception of a plug-in's own code in one line: its type and text, and the place where it was raised."""
    place = traceback.extract_tb(error.__traceback__)[-1:]
    where = f" ({Path(place[0].filename).name}, line {place[0].lineno})" if place else ""
    return library_text(f"{type(error).__name__}: {error}".removesuffix(": ")) + where


def library_text(error: BaseException | str, limit: int = _LONGEST) -> str:
    """The text on one line of at most ``limit`` characters, without the places in the library's own sources."""
    text = " ".join(_PLACES.sub("", " ".join(str(error).split())).split())
    return text if len(text) <= limit else f"{text[: limit - 4].rstrip()} ..."
