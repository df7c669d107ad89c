"""Children that a fork server has started, and the servers of a process."""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import subprocess
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from io import FileIO
from typing import Any

from collage.core.child_process import Failure, command_for, import_path, read_message, write_message
from collage.core.fork_server import Fork, Reap, Refusal

_LIMIT_S = 60.0
"""Importing what children need may take long where a disk is slow."""
_MOST = 3
"""Servers at a time, besides which others are ended: each takes some 150 MB."""
_LIMITS = [value for name, value in vars(resource).items() if name.startswith("RLIMIT_")]
_AT_START = (
    "GLIBC_",
    "GOMP_",
    "KMP_",
    "LD_",
    "MALLOC_",
    "MKL_",
    "OMP_",
    "OPENBLAS_",
    "ORT_",
    "PYTHON",
    "TVM_",
)
"""How variables begin that libraries read when they are loaded, which the server may have done."""


_Loads = tuple[tuple[str, ...], tuple[tuple[str, str], ...]]
"""Where Python imports from, and those variables."""


class NoForkError(Exception):
    """A server cannot fork; the message says why."""


class RefusedForkError(NoForkError):
    """What children need does not survive a fork in this process."""


class ForkedProcess:
    """A child of a fork server, as a ``Process`` of ``ChildProcess``."""

    def __init__(self, server: ForkServer, process: int, stdin: int, stdout: int) -> None:
        """Take over the parent's ends of the child's pipes."""
        self.pid = process
        self.preloaded = frozenset(server.preloaded)
        """The modules that the child did not have to import."""
        self.stdin = FileIO(stdin, "w")
        self.stdout = FileIO(stdout)
        self.returncode: int | None = None
        self._server = server
        self._reaping = threading.Lock()
        self._end = os.pidfd_open(process)  # the server keeps the id until it is asked for the status

    def poll(self) -> int | None:
        """The exit status, or None while the child runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, negative for a signal. Raises subprocess.TimeoutExpired after so many seconds."""
        with self._reaping:
            if self.returncode is None:
                end = select.poll()
                end.register(self._end, select.POLLIN)
                if not end.poll(None if timeout is None else timeout * 1e3):
                    raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
                self.returncode = self._server.reap(self.pid)
                os.close(self._end)
            return self.returncode


class ForkServer:
    """The parent's side of a fork server. Threads may share it; a fork of the parent may not use it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Start the server with this environment. Raises OSError."""
        self.preloaded: set[str] = set()
        """What children have imported when they begin."""
        self._owner = os.getpid()
        self._turn = threading.Lock()
        self._connection, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                command_for("collage.core.fork_server", self._owner),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        self._ended = weakref.finalize(self, _end, self._owner, self._connection, self._process)

    def fork(self, module: str, preload: tuple[str, ...], stderr: int, environment: Mapping[str, str]) -> ForkedProcess:
        """Start a child that runs ``main`` of a module, after the server has imported ``preload``.

        Raises NoForkError, or RefusedForkError where another server would not do it either.
        """
        message = Fork(
            module,
            preload,
            dict(environment),
            import_path(),
            os.getcwd(),
            frozenset(os.sched_getaffinity(0)),
            {each: resource.getrlimit(each) for each in _LIMITS},
        )
        read, stdin = os.pipe()
        stdout, write = os.pipe()
        try:
            process = self._ask(message, [read, write, stderr])
            assert isinstance(process, int)
            self.preloaded.update(preload)
            return ForkedProcess(self, process, stdin, stdout)
        except BaseException:
            os.close(stdin)
            os.close(stdout)
            raise
        finally:
            os.close(read)
            os.close(write)

    def reap(self, process: int) -> int:
        """The exit status of a child that has ended. Where the server has ended, too, it counts as killed."""
        try:
            found = self._ask(Reap(process), [])
        except NoForkError:
            return -signal.SIGKILL
        assert isinstance(found, int)
        return found

    def close(self) -> None:
        """End the server; its children go on. Closing twice does nothing."""
        self._ended()

    def _ask(self, message: object, descriptors: list[int]) -> Any:
        if self._owner != os.getpid():
            raise NoForkError("this process is a fork of the one whose server it is")
        with self._turn:
            try:
                socket.send_fds(self._connection, [b"f"], descriptors)
                write_message(self._connection.fileno(), message)
                reply = read_message(self._connection.fileno(), _LIMIT_S)
            except BaseException as error:  # it does not answer, or would answer later, after Ctrl-C
                self.close()
                if not isinstance(error, Exception):
                    raise
                raise NoForkError(f"the server does not answer: {error!r}") from error
        if isinstance(reply, Failure):
            raise (RefusedForkError if isinstance(reply, Refusal) else NoForkError)(reply.message)
        return reply


def _end(owner: int, connection: socket.socket, server: subprocess.Popen[bytes]) -> None:
    connection.close()
    if owner == os.getpid():
        server.kill()
        server.wait()


class ForkServers:
    """Fork servers by what decides what they have loaded. It is a context manager that ends them."""

    def __init__(self) -> None:
        self._servers: dict[_Loads, ForkServer] = {}
        self._turn = threading.Lock()
        self.possible = _can_fork() and not _refused
        """Whether this system has what it takes: Linux 5.3, nothing that forbids it, and no driver of a GPU."""

    def __enter__(self) -> ForkServers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fork(
        self, module: str, preload: tuple[str, ...], stderr: int, environment: Mapping[str, str]
    ) -> ForkedProcess | None:
        """A child as ``ForkServer.fork`` starts it, or None where there cannot be one: it is to be started afresh."""
        global _refused
        if not self.possible:
            return None
        variables = (each for each in environment.items() if each[0].startswith(_AT_START))
        key = import_path(), tuple(sorted(variables))
        with self._turn:
            server = self._servers.pop(key, None)
            try:
                server = server or ForkServer(environment)
                child = server.fork(module, preload, stderr, environment)
            except RefusedForkError:
                self.possible, _refused = False, True
                return None
            except (OSError, NoForkError):
                return None
            self._servers[key] = server  # the last one was used last
            while len(self._servers) > _MOST:
                self._servers.pop(next(iter(self._servers)))
            return child

    def close(self) -> None:
        """End the servers. Closing twice does nothing."""
        with self._turn:
            while self._servers:
                self._servers.popitem()[1].close()


kept: ForkServers | None = None
"""Servers that outlive those who use them, if somebody has set them, such as tests."""
_refused = False
"""Whether a server has refused to fork, so that no other one need be started for that."""


def fork_servers() -> tuple[ForkServers, bool]:
    """The servers that are kept, or new ones; and whether they are new, so that the caller has to close them."""
    return (ForkServers(), True) if kept is None else (kept, False)


def _can_fork() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):  # no Linux, an old one, or a sandbox
        return False
    return True
