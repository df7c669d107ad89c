"""The link between two processes of this machine, measured."""

from __future__ import annotations

import time
from statistics import median

from collage.graphpipe.cluster import Link
from collage.graphpipe.runtime import Peers

_SMALL, _LARGE = 64, 1 << 22
_RUNS = 30


def measured_link(limit_s: float) -> Link:
    """The link between ranks 0 and 1, from messages there and back. Both ranks call this. Raises CollageError."""
    import torch

    peers = Peers([[0], [1]], limit_s)
    found = {}
    for nbytes in (_SMALL, _LARGE):
        tensor = torch.zeros(nbytes, dtype=torch.uint8)
        taken = []
        for at in range(_RUNS):
            start = time.perf_counter()
            for sends in (peers.rank == 0, peers.rank == 1):
                with peers.waiting("the other process"):
                    (peers.send if sends else peers.receive)(tensor, 1 - peers.rank, at).wait()
            taken.append((time.perf_counter() - start) / 2)
        found[nbytes] = median(taken[3:])
    slope = max(1e-12, found[_LARGE] - found[_SMALL]) / (_LARGE - _SMALL)
    return Link(max(0.0, found[_SMALL] - _SMALL * slope), 1 / slope)
