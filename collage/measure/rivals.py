"""What candidates compete with: the incumbent, the fastest plan so far."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from collage.measure.worker.protocol import CandidateRequest

Nodes: TypeAlias = "tuple[int, ...]"


@dataclass(frozen=True)
class Rivals:
    """The kernels that candidates race against, and what there is to gain; times are in microseconds.

    ``cover`` has the incumbent's kernels for exactly these nodes, one or several. ``network_us`` is the network's time
    now, and ``share_us`` the part of it that kernels of these nodes take, which is what a candidate could gain at most.
    A call of an engine costs ``switch_us`` on top of its own time.
    """

    cover: Mapping[Nodes, tuple[CandidateRequest, ...]] = field(default_factory=dict)
    network_us: float = 0.0
    share_us: Callable[[Nodes], float] = lambda _: math.inf
    switch_us: float = 0.0


NO_RIVALS = Rivals()
"""There is no incumbent."""
