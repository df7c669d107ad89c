"""A process of a decoder besides the first one. It ends when the first one does, whatever it is doing then."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from typing import Any

import numpy as np

from collage.core.child_process import ChannelError, read_message, write_message
from collage.core.library_text import library_text
from collage.errors import CollageError
from collage.serve.parallel.gloo import GlooTensors, load_torch
from collage.serve.parallel.messages import (
    CountBytes,
    DecoderLoaded,
    Failed,
    Fill,
    IterationStep,
    Meet,
    RankReady,
    RankSetup,
    RankStop,
)
from collage.serve.parallel.options import TENSOR
from collage.serve.parallel.ranks import fill_caches, held_by, make_rank
from collage.serve.parallel.tensors import PeerLostError, exchange

_MEETING_S = 60.0
_PEER_S = 5.0


def main(descriptor: int) -> None:
    """Compute what the process at the other end of this socket asks for."""
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


BOOTSTRAP = (
    "import sys; sys.path[:] = sys.argv[2:]; "
    "from collage.serve.parallel.worker import main; main(int(sys.argv[1]))"
)


def command(descriptor: int) -> list[str]:
    """The command line of a process that talks over this file descriptor."""
    return [sys.executable, "-c", BOOTSTRAP, str(descriptor), *(os.path.abspath(each) for each in sys.path)]
