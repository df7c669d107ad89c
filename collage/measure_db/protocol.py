"""What the measurer and its worker say to each other: length-prefixed pickles over two pipes."""

from __future__ import annotations

import os
import pickle
import select
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from collage.backends.base import BuildOptions

_HEADER = struct.Struct("<4sQ")
_MAGIC = b"CLG1"


@dataclass(frozen=True)
class Request:
    """A candidate to measure: node ids of the model, ascending, and the backend's name."""

    nodes: tuple[int, ...]
    backend: str


@dataclass(frozen=True)
class Init:
    """The first message. ``folder`` holds ``model.onnx`` and takes the reference values.

    ``wrong`` is what ``from_simplified`` was called with, ``fingerprint`` that of the graph it gave, and
    ``backends`` holds pickles. ``memory_bytes`` limits the worker's data; None: what the machine can spare.
    """

    folder: str
    name: str
    wrong: Mapping[int, str]
    fingerprint: str
    backends: Mapping[str, bytes]
    threads: int
    memory_bytes: int | None


@dataclass(frozen=True)
class Evaluate:
    """Compute the reference values, if they are not in the folder yet. Reply: Evaluated."""


@dataclass(frozen=True)
class Measure:
    """Measure one candidate. Reply: an Outcome. The worker ends itself long after ``limit_s`` seconds."""

    request: Request
    options: BuildOptions
    limit_s: float


@dataclass(frozen=True)
class MeasureSwitch:
    """Measure the cost of switching between kernels of these candidates. Reply: SwitchCost."""

    requests: tuple[Request, ...]
    options: BuildOptions
    limit_s: float


@dataclass(frozen=True)
class Ready:
    """The worker has imported the model."""


@dataclass(frozen=True)
class Evaluated:
    """ONNX nodes, by index, whose conversion gives wrong numbers, with the reason."""

    wrong: Mapping[int, str]


@dataclass(frozen=True)
class SwitchCost:
    """Eq. 2.2's cost of one more launch, in microseconds."""

    us: float


@dataclass(frozen=True)
class Failure:
    """The worker cannot do what it was asked, and it is no candidate's fault."""

    message: str


class ChannelError(Exception):
    """What came through the pipe is no message: the other side's memory is damaged."""


def write_message(fd: int, message: object) -> None:
    """Send a message; blocks until it is in the pipe. Raises BrokenPipeError when nobody reads any more."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    data = memoryview(_HEADER.pack(_MAGIC, len(body)) + body)
    while data:
        data = data[os.write(fd, data) :]


def read_message(fd: int, limit_s: float | None = None) -> Any:
    """Wait for the next message, at most ``limit_s`` seconds.

    Raises TimeoutError, EOFError when the other side is gone, and ChannelError.
    """
    deadline = None if limit_s is None else time.monotonic() + limit_s
    magic, size = _HEADER.unpack(_read(fd, _HEADER.size, deadline))
    if magic != _MAGIC:
        raise ChannelError("damaged message")
    body = _read(fd, size, deadline)
    try:
        return pickle.loads(body)
    except Exception as error:  # unpickling raises anything
        raise ChannelError(f"damaged message: {error}") from error


def _read(fd: int, size: int, deadline: float | None) -> bytes:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    data = bytearray()
    while len(data) < size:
        left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1e3
        if not poll.poll(left):
            raise TimeoutError
        chunk = os.read(fd, min(size - len(data), 1 << 20))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)
