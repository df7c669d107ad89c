"""What the server's process and the engine's process tell each other: pickles behind their length, over a socket."""

from __future__ import annotations

import pickle
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from collage.serve.options import EngineOptions
from collage.serve.parallel.options import Parallelism
from collage.serve.request import Event, IterationRecord, Request, Stats

HEADER = struct.Struct("<I")


@dataclass(frozen=True)
class EngineSetup:
    """What an engine's process is started with.

    ``tokenizer`` is the folder where a tokenizer may be, and ``cpus`` are the processors that it may run on, empty for
    all. ``share_weights`` is that of ``open_runner``.
    """

    model: Path
    options: EngineOptions
    tokenizer: Path
    block_count: int | None = None
    cache: str = "float32"
    parallelism: Parallelism | None = None
    cpus: tuple[int, ...] = ()
    share_weights: bool = False


@dataclass(frozen=True)
class ModelReady:
    """The model is loaded, with these sizes; ``most_open`` is how many requests the engine takes at a time."""

    block_tokens: int
    block_count: int
    max_length: int
    vocabulary: int
    most_open: int

    @property
    def most_tokens(self) -> int:
        """The most tokens of a prompt and its answer: what the model takes, or the cache where that has less room."""
        return min(self.max_length, self.block_count * self.block_tokens)


@dataclass(frozen=True)
class NotReady:
    """The model cannot be loaded; the message is one line for the user."""

    message: str
    exit_code: int


class Submit(NamedTuple):
    """The requests of one HTTP request, which may begin in the same iteration. What they share is sent once."""

    requests: tuple[Request, ...]


class Cancel(NamedTuple):
    ids: tuple[int, ...]


class Stop(NamedTuple):
    pass


class Batch(NamedTuple):
    events: list[Event]
    iteration: IterationRecord | None
    stats: Stats


def packed(message: Any) -> bytes:
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return HEADER.pack(len(body)) + body
