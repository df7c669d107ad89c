"""A system that serves requests, and what it is opened with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from scripts.lib.serving.trace import Arrival

OURS, STATIC, GENAI = "collage", "shortest-first", "openvino-genai"
DEFAULTS = f"{GENAI} at its defaults"
CONTENDERS: Mapping[str, str] = {
    OURS: "collage_engine",
    STATIC: "shortest_first",
    GENAI: "openvino_genai",
    DEFAULTS: "openvino_genai",
}
"""The contenders, each with its module in ``scripts.lib.serving.contenders``."""

FLOAT32, BFLOAT16, INT8 = "float32", "bfloat16", "int8"

Note = Callable[[int, int], None]
"""Takes the number of a request and its next token."""


class MissingError(Exception):
    """A contender is not installed, or cannot take the model. The message is one line."""


@dataclass(frozen=True)
class Setup:
    """A contender's files and limits.

    ``folder`` is the model in the form of Hugging Face, in which a contender keeps its own form. ``module`` is
    Collage's file. ``running`` is the most requests at a time. ``precision`` is that of products and of the cache, or
    INT8, which is that of weights only.
    """

    folder: Path
    module: Path
    threads: int
    running: int
    precision: str = FLOAT32

    @property
    def cache(self) -> str:
        """The precision of keys and values."""
        return FLOAT32 if self.precision == INT8 else self.precision


class Contender(Protocol):
    """A system that serves requests."""

    def facts(self) -> Mapping[str, Any]:
        """Its version and its settings."""
        ...

    def serve(self, arrivals: Sequence[Arrival], note: Note) -> None:
        """Serve the requests as they arrive, in seconds from the call."""
        ...
