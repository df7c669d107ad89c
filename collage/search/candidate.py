"""Candidates, from which the search chooses (section 2.4.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from collage.graph.storage import Storage
from collage.kernel.options import ALL_PLAIN, Variant


@dataclass(frozen=True, slots=True)
class Candidate:
    """A matched subgraph on a backend, (g_i, b_i) in section 2.4.1, with its measured cost M(P(g_i)).

    ``nodes`` are ascending ids. ``cost_us`` and ``noise_us``, the measurement's spread, are microseconds. ``switches``
    counts the context switches that it pays for: none for a kernel on Collage's own team of threads, and none for a
    view, which runs nothing. ``reads`` and ``writes`` are the values that it reads and writes in another storage than
    the plain one, by ascending id, as its ``variant`` says. ``finite_only`` is that of its measurement. The cost of
    one that was ``outrun`` is a lower bound (``results.Slower``): it shows whether measuring it to the end could pay.

    ``error`` is what the candidate adds to the error of the outputs, in a unit in which errors of candidates add up
    (see ``collage.search.errors``). It is 0 for exact kernels, and for all of them without a tolerance.
    """

    nodes: tuple[int, ...]
    backend: str
    cost_us: float
    noise_us: float = 0.0
    switches: int = 1
    variant: Variant = ALL_PLAIN
    reads: tuple[tuple[int, Storage], ...] = ()
    writes: tuple[tuple[int, Storage], ...] = ()
    finite_only: bool = False
    outrun: bool = False
    error: float = 0.0

    def __post_init__(self) -> None:
        if not self.nodes or any(a >= b for a, b in pairwise(self.nodes)):
            raise ValueError(f"nodes of a candidate must be ascending ids, at least one: {self.nodes}")
        if not (0 <= self.cost_us < math.inf and 0 <= self.noise_us < math.inf):
            raise ValueError(f"cost and noise must be finite and not negative: {self.cost_us} us, {self.noise_us} us")
        if not 0 <= self.error < math.inf:
            raise ValueError(f"the error must be finite and not negative: {self.error}")
