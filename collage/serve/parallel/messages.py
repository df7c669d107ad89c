"""The plane of control: what the first process of a decoder and the others tell each other. It carries no tensors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from collage.serve.parallel.options import Parallelism
from collage.serve.runner import Slice


@dataclass(frozen=True)
class RankSetup:
    """What a process is started with: process ``rank`` of a decoder, with ``blocks`` blocks of the cache.

    The processes meet at the file ``meeting``. ``cpus`` are those that it may run on, none for any.
    """

    parallelism: Parallelism
    rank: int
    model: Path
    blocks: int
    cache: str
    meeting: Path
    cpus: tuple[int, ...]


class DecoderLoaded(NamedTuple):
    """The process has loaded the decoder, and can meet the others."""


class RankReady(NamedTuple):
    """The process is connected with the others, and takes iterations."""


class Failed(NamedTuple):
    """The process cannot go on; the message is one line for the user."""

    message: str


class Meet(NamedTuple):
    """All have loaded: connect."""


class IterationStep(NamedTuple):
    """Run an iteration: token ids, positions and blocks, as in Orca's control plane."""

    slices: tuple[Slice, ...]


class Fill(NamedTuple):
    """Fill the cache with numbers that follow from the seed, layer and block, for measurements and tests."""

    seed: int


class CountBytes(NamedTuple):
    """Send the first process how many bytes this one has sent, as a float64."""


class RankStop(NamedTuple):
    """The process shall end."""
