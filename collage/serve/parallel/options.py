"""How a decoder is divided among processes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from collage.errors import UsageError, unknown_names

CACHE, TENSOR, PIPELINE = "cache", "tensor", "pipeline"
KINDS = (CACHE, TENSOR, PIPELINE)
"""Each process has some blocks of every sequence's cache, some heads and columns of each layer, or some layers."""


@dataclass(frozen=True)
class Parallelism:
    """``processes`` compute one decoder together; ``kind`` is one of ``KINDS``.

    A process that does not answer for ``answer_s`` seconds is taken for lost, and so is the decoder.
    """

    kind: str = CACHE
    processes: int = 2
    answer_s: float = 60.0

    @property
    def workers(self) -> int:
        """The number of iterations that can be in flight."""
        return self.processes if self.kind == PIPELINE else 1

    @property
    def parts(self) -> int:
        """The number of parts that the heads are divided into."""
        return self.processes if self.kind == TENSOR else 1

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown_names("kind of parallelism", [self.kind], KINDS)
        if self.processes < 2:
            raise UsageError(f"a decoder is divided among 2 processes or more, not {self.processes}.")
        if not (math.isfinite(self.answer_s) and self.answer_s > 0):
            raise UsageError(f"answer_s is {self.answer_s}; it must be a number of seconds above 0.")
