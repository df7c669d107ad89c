"""The plane of tensors: what a decoder's processes send each other, over gloo, or between threads of one process."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Mapping
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from collage.core.library_text import library_text
from collage.errors import CollageError
from collage.graph.dataflow import Array

Wait = Callable[[], None]
"""Waits until a transfer is done. Raises PeerLostError."""


class PeerLostError(Exception):
    """Another process is gone, or has not answered in time."""


class Tensors(Protocol):
    """Transfers between this process and the other ones, its peers, of which ``rank`` is this one's number.

    Both sides know what is sent and how large it is, so nothing but the values is on the wire. ``sent_bytes`` counts
    the bytes of the values that this process has sent. Arrays are C-contiguous, and not empty.
    """

    rank: int
    size: int
    sent_bytes: int

    def send(self, peer: int, array: Array) -> Wait:
        """Begin to send an array, which must not change until the transfer is done."""
        ...

    def receive(self, peer: int, array: Array) -> Wait:
        """Begin to fill an array with what the peer sends next."""
        ...

    def close(self) -> None:
        """End all transfers."""
        ...


def add_up(tensors: Tensors, array: Array) -> None:
    """Add up the arrays of all processes, in place: an all-reduce, after which all have the same bits.

    Process p adds up part p of the array, in the order of processes, and sends it to the others. Raises PeerLostError.
    """
    flat, size, rank = array.reshape(-1), tensors.size, tensors.rank
    bounds = [len(flat) * process // size for process in range(size + 1)]
    parts = [flat[bounds[process] : bounds[process + 1]] for process in range(size)]
    peers = [peer for peer in range(size) if peer != rank]
    found = {peer: np.empty_like(parts[rank]) for peer in peers}
    exchange(tensors, {peer: parts[peer] for peer in peers}, found)
    found[rank] = parts[rank].copy()
    np.copyto(parts[rank], found[0])
    for process in range(1, size):
        np.add(parts[rank], found[process], out=parts[rank])
    exchange(tensors, dict.fromkeys(peers, parts[rank]), {peer: parts[peer] for peer in peers})


def exchange(tensors: Tensors, outgoing: Mapping[int, Array], incoming: Mapping[int, Array]) -> None:
    """Send an array to some peers and fill one from some, at the same time. Empty ones are not sent.

    Raises PeerLostError.
    """
    waits = [tensors.receive(peer, array) for peer, array in incoming.items() if array.size]
    waits += [tensors.send(peer, array) for peer, array in outgoing.items() if array.size]
    for wait in waits:
        wait()


class LocalTensors:
    """One of several threads; ``together`` makes them."""

    def __init__(self, rank: int, queues: list[list[queue.SimpleQueue[Array]]], limit_s: float) -> None:
        self.rank = rank
        self.size = len(queues)
        self.sent_bytes = 0
        self._queues = queues
        self._limit_s = limit_s

    def send(self, peer: int, array: Array) -> Wait:
        self.sent_bytes += array.nbytes
        self._queues[self.rank][peer].put(array.copy())
        return lambda: None

    def receive(self, peer: int, array: Array) -> Wait:
        def wait() -> None:
            try:
                found = self._queues[peer][self.rank].get(timeout=self._limit_s)
            except queue.Empty as error:
                raise PeerLostError(f"thread {peer} has sent nothing for {self._limit_s:g} s") from error
            np.copyto(array.reshape(-1), found.reshape(-1))

        return wait

    def close(self) -> None:
        pass


def together(size: int, limit_s: float = 60.0) -> list[LocalTensors]:
    queues: list[list[queue.SimpleQueue[Array]]] = [[queue.SimpleQueue() for _ in range(size)] for _ in range(size)]
    return [LocalTensors(rank, queues, limit_s) for rank in range(size)]


_INTERFACE = "GLOO_SOCKET_IFNAME"
_LOOPBACK = "lo"


def check_torch() -> None:
    """Raise CollageError if torch is not installed."""
    if find_spec("torch") is None:
        raise CollageError("several processes need torch: pip install 'collage-compiler[parallel]'.")


def load_torch() -> None:
    import torch.distributed  # noqa: F401


class GlooTensors:
    """One of ``size`` processes that meet at a file, which no other group may have used.

    A transfer that is not done after ``limit_s`` seconds raises PeerLostError, and so does one whose peer has ended.
    Connections are made on the loopback interface only.
    """

    def __init__(self, rank: int, size: int, meeting: Path, limit_s: float) -> None:
        from torch import from_numpy
        from torch.distributed import FileStore, ProcessGroupGloo

        self.rank = rank
        self.size = size
        self.sent_bytes = 0
        self._tensor = from_numpy
        before = os.environ.get(_INTERFACE)
        os.environ[_INTERFACE] = _LOOPBACK
        try:
            self._group: Any = ProcessGroupGloo(FileStore(str(meeting), size), rank, size, timedelta(seconds=limit_s))
        except RuntimeError as error:
            raise PeerLostError(library_text(error)) from error
        finally:
            if before is None:
                del os.environ[_INTERFACE]
            else:
                os.environ[_INTERFACE] = before

    def send(self, peer: int, array: Array) -> Wait:
        self.sent_bytes += array.nbytes
        return self._begin(self._group.send, array, peer)

    def receive(self, peer: int, array: Array) -> Wait:
        return self._begin(self._group.recv, array, peer)

    def close(self) -> None:
        self._group = None

    def _begin(self, transfer: Any, array: Array, peer: int) -> Wait:
        try:
            work = transfer([self._tensor(array)], peer, 0)
        except RuntimeError as error:
            raise PeerLostError(library_text(error)) from error

        def wait() -> None:
            try:
                work.wait()
            except RuntimeError as error:
                raise PeerLostError(library_text(error)) from error

        return wait
