"""A Python child process and its parent, which exchange length-prefixed pickles over two pipes.

The child may crash, hang, close its pipes or damage its memory; the parent survives this and learns the cause.
"""

from __future__ import annotations

import math
import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, Protocol

_HEADER = struct.Struct("<4sQ")
_MAGIC = b"CLG1"

# Not "-m": that puts the working directory first on the path, where a user's onnx.py would shadow ours.
_BOOTSTRAP = "import sys; sys.path[:] = sys.argv[2:]; from {module} import main; main()"
_END_LIMIT_S = 2.0
_MOST_MS = float(2**31 - 1)
"""The longest that the system waits for a pipe at once."""


class ChildError(Exception):
    """A child did not do what it was asked to do; the message says why."""


class ChannelError(ChildError):
    """The bytes from the pipe are no message, since the other side's memory is damaged."""


class ChildEndedError(ChildError):
    """A child ended instead of answering.

    ``code`` is its exit status, negative for a signal. It is None when the child closed its pipe and had to be killed.
    """

    def __init__(self, code: int | None) -> None:
        super().__init__(f"its process ended ({_ending(code)})")
        self.code = code


@dataclass(frozen=True)
class Failure:
    """A child's reply when it cannot do what it was asked to do."""

    message: str


@dataclass(frozen=True)
class Waits:
    """What a child sends when it begins to wait for others, and its time limit shall not run."""


@dataclass(frozen=True)
class GoesOn:
    """What a child sends after ``Waits`` when it goes on. Its time limit runs again."""


class Process(Protocol):
    """A process that was started, with those parts of ``subprocess.Popen`` that its parent needs."""

    @property
    def pid(self) -> int:
        """The id of the process."""

    @property
    def returncode(self) -> int | None:
        """The exit status, negative for a signal, once somebody has waited for it."""

    @property
    def stdin(self) -> IO[bytes] | None:
        """The pipe that the process reads."""

    @property
    def stdout(self) -> IO[bytes] | None:
        """The pipe that the process writes to."""

    def poll(self) -> int | None:
        """The exit status, or None while the process runs."""

    def wait(self, timeout: float | None = None) -> int:
        """The exit status. Raises subprocess.TimeoutExpired after so many seconds."""


class ChildProcess:
    """The parent's side of a child that runs ``main`` of a module."""

    def __init__(
        self,
        module: str,
        stderr: int | IO[bytes],
        env: Mapping[str, str] | None = None,
        process: Process | None = None,
    ) -> None:
        """Start the child, with this process's environment unless ``env`` gives one, or take over a ``process``."""
        self._process: Process = _started(module, stderr, env) if process is None else process
        self._owner = os.getpid()
        ended = weakref.finalize(self, _end_process, self._process, self._owner)
        ended.atexit = False  # children see that their pipe is closed

    @property
    def alive(self) -> bool:
        """Whether the child still runs."""
        return self._process.poll() is None

    def ask(self, message: object, limit_s: float, *, most_s: float = math.inf) -> Any:
        """Send a message and wait for the reply, at most ``limit_s`` seconds besides those in which the child waits.

        With those it takes at most ``most_s`` seconds, also where the child does not read. Raises ChildError when the
        reply is a Failure; the child lives on. Raises TimeoutError, ChildEndedError and ChannelError. After these, and
        after any other exception (such as KeyboardInterrupt), the child is killed.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        start = time.monotonic()
        try:
            _write(self._process.stdin.fileno(), self.pickled(message), start + min(limit_s, most_s))
            spent = time.monotonic() - start
            reply = _read_reply(self._process.stdout.fileno(), limit_s - spent, most_s - spent)
        except (EOFError, BrokenPipeError) as error:
            raise ChildEndedError(self._code()) from error
        except BaseException:
            self.kill()
            raise
        if isinstance(reply, Failure):
            raise ChildError(reply.message)
        return reply

    def pickled(self, message: object) -> bytes:
        """What is sent for a message: a pickle that the child can read."""
        return pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)

    def _code(self) -> int | None:
        """The child's exit status. It has closed its pipe, so it has ended or will end soon."""
        try:
            return self._process.wait(timeout=_END_LIMIT_S)
        except subprocess.TimeoutExpired:
            return None
        finally:
            self.kill()

    def end(self) -> None:
        """Kill the child and what it started. Unlike ``kill`` it may be called while another thread asks the child.

        That thread sees that the child has ended.
        """
        if self._process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """Kill the child and all processes that it started, and wait for it. The child has nothing to save.

        This also happens to a child that nobody holds any more. Killing twice does nothing.
        """
        _end_process(self._process, self._owner)


def _end_process(process: Process, owner: int) -> None:
    """Kill a child, and wait for it.

    The pipes are closed last: a measuring worker that sees them close assumes that its parent is dead, and removes the
    folder that the next worker needs.
    """
    if os.getpid() != owner:  # a fork, which has copies of the parent's objects
        return
    if process.returncode is None:  # nobody has waited for it yet, so its id is still its own
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


def import_path() -> tuple[str, ...]:
    """Where this process imports from, as whole paths."""
    return tuple(os.path.abspath(entry) for entry in sys.path)


def command_for(module: str, parent: int) -> list[str]:
    """The command of a new Python that runs ``main`` of a module as a child of the process with the id ``parent``."""
    return [sys.executable, "-c", _BOOTSTRAP.format(module=module), str(parent), *import_path()]


def _started(module: str, stderr: int | IO[bytes], env: Mapping[str, str] | None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command_for(module, os.getpid()),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=env,
        start_new_session=True,  # Ctrl-C goes to the parent only, and what the child starts can be killed with it
        bufsize=0,
    )


def signal_name(number: int) -> str:
    """``SIGSEGV`` and the like; ``signal 40`` for those without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _ending(code: int | None) -> str:
    if code is None:
        return "it closed its pipe"
    return f"status {code}" if code >= 0 else signal_name(-code)


def take_over_pipes() -> tuple[int, int]:
    """Keep the pipes of a child out of the way of libraries that print to stdout or read stdin.

    Returns the descriptors to read from and to write to. What a library prints goes to stderr.
    """
    source, sink = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return source, sink


def parent_id() -> int:
    """The id of the process that started this child: its parent, or a fork server of it. That may have ended."""
    return int(sys.argv[1])


def write_message(fd: int, message: object) -> None:
    """Send a message, and wait until it is in the pipe. Raises BrokenPipeError when nobody reads any more."""
    data = _framed(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))
    while data:
        data = data[os.write(fd, data) :]


def _framed(body: bytes) -> memoryview:
    return memoryview(_HEADER.pack(_MAGIC, len(body)) + body)


def _write(fd: int, body: bytes, deadline: float) -> None:
    """Send a message that is pickled already. Raises TimeoutError, and BrokenPipeError when nobody reads any more.

    The pipe does not block from then on.
    """
    os.set_blocking(fd, False)
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    data = _framed(body)
    while data:
        _wait(poll, deadline)
        with suppress(BlockingIOError):
            data = data[os.write(fd, data) :]


def read_message(fd: int, limit_s: float = math.inf) -> Any:
    """Wait for the next message, at most ``limit_s`` seconds.

    Raises TimeoutError, EOFError when the other side is gone, and ChannelError.
    """
    deadline = time.monotonic() + limit_s
    magic, size = _HEADER.unpack(_read(fd, _HEADER.size, deadline))
    if magic != _MAGIC:
        raise ChannelError("damaged message")
    body = _read(fd, size, deadline)
    try:
        return pickle.loads(body)
    except Exception as error:  # unpickling damaged bytes may raise anything
        raise ChannelError(f"damaged message: {error}") from error


def _read_reply(fd: int, limit_s: float, most_s: float) -> Any:
    """Wait for the next message that is a reply. Only ``most_s`` runs between ``Waits`` and ``GoesOn``."""
    left, end = limit_s, time.monotonic() + most_s
    while True:
        start = time.monotonic()
        reply = read_message(fd, min(left, end - start))
        if isinstance(reply, Waits):
            now = time.monotonic()
            left -= now - start
            reply = read_message(fd, end - now)
        if not isinstance(reply, GoesOn):
            return reply


def _wait(poll: select.poll, deadline: float) -> None:
    """Wait for the pipe. Raises TimeoutError."""
    left = math.inf
    while left > 0.0:
        left = max(0.0, deadline - time.monotonic()) * 1e3
        if poll.poll(min(left, _MOST_MS)):
            return
    raise TimeoutError


def _read(fd: int, size: int, deadline: float) -> bytes:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    data = bytearray()
    while len(data) < size:
        _wait(poll, deadline)
        chunk = os.read(fd, min(size - len(data), 1 << 20))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)
