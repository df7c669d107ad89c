"""The engine's process. It ends when the server's process does."""

from __future__ import annotations

import os
import pickle
import queue
import signal
import socket
import sys
import threading
from contextlib import ExitStack, suppress
from typing import Any

from collage.core.library_text import library_text
from collage.errors import CollageError
from collage.serve.http.messages import (
    HEADER,
    Batch,
    Cancel,
    EngineSetup,
    ModelReady,
    NotReady,
    Stop,
    Submit,
    packed,
)
from collage.serve.loop import ClosedError, Loop
from collage.serve.model import open_runner
from collage.serve.request import Event, Finish, IterationRecord, RefusedError, Stats
from collage.serve.runner import Runner
from collage.serve.tokenizer import open_tokenizer


def main() -> None:
    """Serve the requests that come over the socket whose descriptor the command line has."""
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to the whole group; the server says when to end
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        setup = _read(connection)
        assert isinstance(setup, EngineSetup)
        if setup.cpus:
            os.sched_setaffinity(0, setup.cpus)  # before there is a team of threads
        try:
            runner, loop, writer = _started(setup, connection)
        except CollageError as error:
            connection.sendall(packed(NotReady(str(error), error.exit_code)))
            return
        except Exception as error:  # a fault of our own or of a library, which may be anything
            text = f"cannot load {setup.model}: {type(error).__name__}: {library_text(error)}."
            connection.sendall(packed(NotReady(text, 1)))
            return
        writer.put(
            ModelReady(runner.block_tokens, runner.block_count, runner.max_length, runner.vocabulary, loop.most_open)
        )
        try:
            _serve(connection, loop, writer)
        finally:
            _end(connection, runner, loop, writer)


def _started(setup: EngineSetup, connection: socket.socket) -> tuple[Runner, Loop, _Writer]:
    """The model and its loop. Raises what they raise; nothing is left then."""
    tokenizer = open_tokenizer(setup.tokenizer)
    runner = open_runner(
        setup.model,
        setup.block_count,
        setup.cache,
        setup.parallelism,
        setup.share_weights,
    )
    with ExitStack() as undone:
        undone.callback(runner.close)
        writer = _Writer(connection)
        # The end of the connection ends this process, and the server starts another.
        loop = Loop(
            *(runner, setup.options, writer.deliver, tokenizer),
            broken=lambda: connection.shutdown(socket.SHUT_RD),
        )
        undone.pop_all()
    return runner, loop, writer


def _end(connection: socket.socket, runner: Runner, loop: Loop, writer: _Writer) -> None:
    with ExitStack() as closed:
        closed.callback(runner.close)
        closed.callback(_hang_up, connection)
        closed.callback(writer.close)
        loop.close(drain=False)


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)  # the server sends nothing more, and starts another one


def _serve(connection: socket.socket, loop: Loop, writer: _Writer) -> None:
    while True:
        try:
            message = _read(connection)
        except (EOFError, OSError):
            return
        if isinstance(message, Stop):
            return
        if isinstance(message, Cancel):
            for id in message.ids:
                loop.cancel(id)
            continue
        assert isinstance(message, Submit)
        try:
            loop.submit(*message.requests)
        except (RefusedError, ClosedError, CollageError) as error:  # the server has checked before
            text = str(error) or "the engine takes no more requests."
            events = [Event(each.id, finish=Finish.FAILED, error=text) for each in message.requests]
            writer.put(Batch(events, None, loop.stats()))


class _Writer:
    """Sends messages in a thread of its own, so that iterations never wait for the server's process."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def deliver(self, events: list[Event], iteration: IterationRecord | None, stats: Stats) -> None:
        self._messages.put(Batch(events, iteration, stats))

    def put(self, message: object) -> None:
        self._messages.put(message)

    def close(self) -> None:
        self._messages.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (message := self._messages.get()) is not None:
            try:
                self._connection.sendall(packed(message))
            except OSError:  # the server's process is gone, and nobody reads the rest
                return


def _read(connection: socket.socket) -> Any:
    (size,) = HEADER.unpack(_exactly(connection, HEADER.size))
    return pickle.loads(_exactly(connection, size))


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = connection.recv(min(size - len(data), 1 << 20))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)
