"""The plane of tensors: what the processes of a decoder send each other besides control messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

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
