"""A process of a decoder besides the first one, and the messages between the two. It ends when the first one does."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from collage.core.child_process import ChannelError, read_message, write_message
from collage.core.library_text import library_text
from collage.errors import CollageError
from collage.serve.parallel.options import TENSOR, Parallelism
from collage.serve.parallel.ranks import fill_caches, held_by, make_rank
from collage.serve.parallel.tensors import GlooTensors, PeerLostError, exchange, load_torch
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
    pass


class RankReady(NamedTuple):
    """The process is connected with the others, and takes iterations."""


class Failed(NamedTuple):
    """The process cannot go on; the message is one line for the user."""

    message: str


class Meet(NamedTuple):
    pass


class IterationStep(NamedTuple):
    slices: tuple[Slice, ...]


class Fill(NamedTuple):
    """Fill the cache with numbers that follow from the seed, layer and block, for measurements and tests."""

    seed: int


class CountBytes(NamedTuple):
    """Send the first process how many bytes this one has sent, as a float64."""


class RankStop(NamedTuple):
    pass


_MEETING_S = 60.0
_PEER_S = 5.0


def main() -> None:
    """Compute what the process asks for that is at the other end of the socket on the command line."""
    descriptor = int(sys.argv[1])
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # sent to the whole group; the first process says when to end
        signal.signal(number, signal.SIG_IGN)
    setup = read_message(descriptor)
    assert isinstance(setup, RankSetup)
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(descriptor, inbox), daemon=True).start()
    code = 1
    try:
        _serve(setup, descriptor, inbox)
        code = 0
    except PeerLostError:
        time.sleep(_PEER_S)  # the first process learns from the other one itself, and ends this one
    except CollageError as error:
        _tell(descriptor, Failed(str(error)))
    except Exception as error:  # a fault of our own or of a library, which may be anything
        _tell(descriptor, Failed(f"{type(error).__name__}: {library_text(error)}"))
    finally:
        os._exit(code)  # threads of libraries may wait for processes that are gone


def _listen(descriptor: int, inbox: queue.SimpleQueue[Any]) -> None:
    """Take messages in. The end of the connection is that of the first process, and so of this one."""
    try:
        while True:
            inbox.put(read_message(descriptor))
    except (EOFError, OSError, ChannelError):
        os._exit(1)


def _tell(descriptor: int, message: object) -> None:
    try:
        write_message(descriptor, message)
    except OSError:  # nobody is there to be told
        return


def _serve(setup: RankSetup, descriptor: int, inbox: queue.SimpleQueue[Any]) -> None:
    if setup.cpus:
        os.sched_setaffinity(0, setup.cpus)  # before the team of threads is made
    from collage.api import default_registry
    from collage.serve.decoder.file import load_decoder

    registry = default_registry()
    part = setup.rank if setup.parallelism.kind == TENSOR else 0
    compiled = load_decoder(setup.model, registry, rank=part)
    load_torch()
    _tell(descriptor, DecoderLoaded())
    assert isinstance(inbox.get(), Meet)
    parallelism = setup.parallelism
    limit_s = max(parallelism.answer_s, _MEETING_S)
    tensors = GlooTensors(setup.rank, parallelism.processes, setup.meeting, limit_s)
    rank = make_rank(parallelism, compiled, registry, tensors, setup.blocks, setup.cache)
    _tell(descriptor, RankReady())
    counted, layers = 0, len(compiled.decoder.layers)
    while not isinstance(message := inbox.get(), RankStop):
        if isinstance(message, Fill):
            fill_caches(rank.caches, message.seed, held_by(parallelism, setup.rank, layers))
        elif isinstance(message, CountBytes):
            exchange(tensors, {0: np.array([tensors.sent_bytes - counted], np.float64)}, {})
            counted += np.dtype(np.float64).itemsize
        else:
            assert isinstance(message, IterationStep)
            rank.step(message.slices)
    rank.close()
    tensors.close()
