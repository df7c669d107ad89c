"""A process that has imported what its children need, and forks them: they begin within milliseconds.

``ForkServers`` starts it (see ``forked_process``). It has one thread of Python's, and opens no device, so that a child
may do what a process of its own could. It is not Python's own (``multiprocessing.forkserver``), whose children import
the user's main module, and have the environment of whoever started it first.
"""

from __future__ import annotations

import gc
import importlib
import os
import resource
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from collage.core.child_process import Failure, read_message, write_message
from collage.core.lean_imports import lean_imports

_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)
_USUAL = (*_CRASHES, signal.SIGTERM, signal.SIGHUP)
"""Signals that a new process has no handlers for. Libraries may have some, which print much."""
_DRIVER = "libcuda.so"


@dataclass(frozen=True)
class Fork:
    """Start a child that runs ``main`` of a module, as a new process would; the reply is its id.

    Its standard files are descriptors that come with the message. ``preload`` are modules that are imported first.
    ``limits`` are those of ``resource``, soft and hard.
    """

    module: str
    preload: tuple[str, ...]
    environment: Mapping[str, str]
    path: tuple[str, ...]
    folder: str
    cpus: frozenset[int]
    limits: Mapping[int, tuple[int, int]]


@dataclass(frozen=True)
class Reap:
    """Wait for a child to end; the reply is its exit status, negative for a signal."""

    process: int


class Refusal(Failure):
    """The reply where no child of any server would be like a process of its own."""


def main() -> None:
    """Serve one parent, until its end of the socket closes."""
    connection = socket.socket(fileno=os.dup(0))
    _use(os.open(os.devnull, os.O_RDWR), 0)
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # it ends with its parent
        signal.signal(each, signal.SIG_IGN)
    while True:
        try:
            _, descriptors, _, _ = socket.recv_fds(connection, 1, 3)
            message = read_message(connection.fileno())
        except Exception:  # the parent is gone, or has damaged the message, and then nobody can be told
            os._exit(0)
        if isinstance(message, Reap):
            reply: object = _reaped(message.process)
        else:
            reply = _forked(message, descriptors, connection)
            for descriptor in descriptors:
                os.close(descriptor)
        with suppress(OSError):
            write_message(connection.fileno(), reply)


def _reaped(process: int) -> object:
    try:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    except ChildProcessError as error:
        return Failure(str(error))


def _forked(message: Fork, descriptors: Sequence[int], connection: socket.socket) -> object:
    """The id of a new child, which is the leader of its session by now, or why there is none."""
    for module in message.preload:
        if module not in sys.modules:
            sys.path[:] = message.path
            with suppress(Exception), lean_imports():  # the child fails in the same way, and can tell
                importlib.import_module(module)
            gc.collect()
            gc.freeze()  # pages that no collection writes to are the same in all children
    if _DRIVER in Path("/proc/self/maps").read_text():
        return Refusal("a library has loaded the GPU's driver, which does not survive a fork")
    begun, begins = os.pipe()
    try:
        child = os.fork()
    except OSError as error:
        os.close(begun)
        os.close(begins)
        return Failure(str(error))
    if not child:
        connection.close()
        os.close(begun)
        _become(message, descriptors, begins)
    os.close(begins)
    os.read(begun, 1)
    os.close(begun)
    return child


def _become(message: Fork, descriptors: Sequence[int], begins: int) -> NoReturn:
    """Be the child, to its end."""
    code = 1
    try:
        server = os.getppid()
        os.setsid()
        for place, each in enumerate(descriptors):
            _use(each, place)
        os.close(begins)
        for number in _USUAL:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with suppress(OSError):  # it may have been removed
            os.chdir(message.folder)
        with suppress(OSError):
            os.sched_setaffinity(0, message.cpus)
        for limit, values in message.limits.items():
            with suppress(OSError, ValueError):  # a hard limit cannot be raised
                resource.setrlimit(limit, values)
        os.environ.clear()
        os.environ.update(message.environment)
        tempfile.tempdir = None  # the server's
        sys.path[:] = message.path
        sys.argv[:] = ["-c", str(server)]
        importlib.import_module(message.module).main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code & 0xFF)


def _use(descriptor: int, place: int) -> None:
    """Let the file with this descriptor be the standard file of that number."""
    os.dup2(descriptor, place)
    os.close(descriptor)
