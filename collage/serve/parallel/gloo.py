"""Tensors over torch.distributed's gloo, between processes of this machine."""

from __future__ import annotations

import os
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from collage.core.library_text import library_text
from collage.errors import CollageError
from collage.graph.dataflow import Array
from collage.serve.parallel.tensors import PeerLostError, Wait

_INTERFACE = "GLOO_SOCKET_IFNAME"
_LOOPBACK = "lo"


def check_torch() -> None:
    """Raise CollageError where torch is not installed."""
    if find_spec("torch") is None:
        raise CollageError("several processes need torch: pip install '.[parallel]' in Collage's checkout.")


def load_torch() -> None:
    """Import torch, which takes seconds."""
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
            self._group: Any = ProcessGroupGloo(
                FileStore(str(meeting), size), rank, size, timedelta(seconds=limit_s)
            )
        except RuntimeError as error:
            raise PeerLostError(library_text(error)) from error
        finally:
            if before is None:
                del os.environ[_INTERFACE]
            else:
                os.environ[_INTERFACE] = before

    def send(self, peer: int, array: Array) -> Wait:
        """Begin to send an array."""
        self.sent_bytes += array.nbytes
        return self._begin(self._group.send, array, peer)

    def receive(self, peer: int, array: Array) -> Wait:
        """Begin to fill an array."""
        return self._begin(self._group.recv, array, peer)

    def close(self) -> None:
        """End all transfers."""
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
