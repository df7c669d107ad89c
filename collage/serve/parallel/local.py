"""Tensors between threads of one process: for tests, and for trying a division out without torch."""

from __future__ import annotations

import queue

import numpy as np

from collage.graph.dataflow import Array
from collage.serve.parallel.tensors import PeerLostError, Wait


class LocalTensors:
    """One of several threads; ``together`` makes them."""

    def __init__(self, rank: int, queues: list[list[queue.SimpleQueue[Array]]], limit_s: float) -> None:
        self.rank = rank
        self.size = len(queues)
        self.sent_bytes = 0
        self._queues = queues
        self._limit_s = limit_s

    def send(self, peer: int, array: Array) -> Wait:
        """Send a copy of an array."""
        self.sent_bytes += array.nbytes
        self._queues[self.rank][peer].put(array.copy())
        return lambda: None

    def receive(self, peer: int, array: Array) -> Wait:
        """Begin to fill an array."""

        def wait() -> None:
            try:
                found = self._queues[peer][self.rank].get(timeout=self._limit_s)
            except queue.Empty as error:
                raise PeerLostError(f"thread {peer} has sent nothing for {self._limit_s:g} s") from error
            np.copyto(array.reshape(-1), found.reshape(-1))

        return wait

    def close(self) -> None:
        """End nothing: what was sent is in memory."""


def together(size: int, limit_s: float = 60.0) -> list[LocalTensors]:
    """The ends of ``size`` threads."""
    queues: list[list[queue.SimpleQueue[Array]]] = [
        [queue.SimpleQueue() for _ in range(size)] for _ in range(size)
    ]
    return [LocalTensors(rank, queues, limit_s) for rank in range(size)]
