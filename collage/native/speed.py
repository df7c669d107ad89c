"""How fast the processor reads, and how long a team takes to meet.

The loops are in `kernels/speed.cpp`, and run as tasks of a team.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from collage.graph.dataflow import Array
from collage.kernel.buffers import aligned_bytes
from collage.native.kernel_library import library_function
from collage.native.launch import LaunchList, Step, Task
from collage.native.team import team_of

_AT_ONCE_BYTES = 2 << 20
_STRIDE = 1024
_BARRIERS = 200


@dataclass
class Sampled:
    """Something that is called again and again, and its samples in seconds.

    ``work`` is what a call does, in the unit of a speed. ``before`` is called before each sample and not timed.
    """

    call: Callable[[], object]
    work: float = 1.0
    before: Callable[[], object] | None = None
    samples: list[float] = field(default_factory=list)

    def sample(self) -> None:
        """Take one sample."""
        if self.before is not None:
            self.before()
        start = time.perf_counter()
        self.call()
        self.samples.append(time.perf_counter() - start)

    @property
    def best_s(self) -> float:
        """The shortest sample, since whatever disturbs one makes it longer."""
        return max(min(self.samples), 1e-9)

    @property
    def per_second(self) -> float:
        """The most work in a second."""
        return self.work / self.best_s


def can_measure() -> bool:
    """Whether the loops were built."""
    return library_function("collage_speed_arithmetic") is not None


def reading(nbytes: int) -> Sampled:
    """One thread that reads ``nbytes`` bytes again and again."""
    size = max(_STRIDE, nbytes // _STRIDE * _STRIDE)
    times = max(1, _AT_ONCE_BYTES // size)
    task = _task("read", _zeros(size), aligned_bytes(64), size, times)
    run = LaunchList(team_of(1), [Step((task,))])
    return Sampled(run, float(size * times), before=run)


class Memory:
    """An array that no cache holds, of which one of ``parts`` parts after another is read."""

    def __init__(self, nbytes: int, parts: int) -> None:
        self._whole = _zeros(nbytes)
        self._pieces = np.array_split(self._whole.reshape(-1, _STRIDE), parts)
        self._next = 0

    def reading(self, threads: int) -> Sampled:
        """Reading the part whose turn it is among all that read this array."""
        runs = [_part_run(piece, threads) for piece in self._pieces]

        def call() -> None:
            runs[self._next]()
            self._next = (self._next + 1) % len(runs)

        return Sampled(call, self._whole.nbytes / len(runs))


def barrier(threads: int) -> Sampled:
    """Barriers of a team whose threads have nothing else to do."""
    return Sampled(LaunchList(team_of(threads), [_nothing(threads)] * _BARRIERS), _BARRIERS)


def _nothing(threads: int) -> Step:
    return Step(
        tuple(_task("arithmetic", aligned_bytes(64), np.zeros(1, np.int64), 0) for _ in range(threads))
    )


def _part_run(piece: Array, threads: int) -> LaunchList:
    shares: Sequence[Array] = np.array_split(piece, threads)
    tasks = [_task("read", share, aligned_bytes(64), share.nbytes, 1) for share in shares]
    return LaunchList(team_of(threads), [Step(tuple(tasks))])


def _zeros(size: int) -> Array:
    found = aligned_bytes(size)
    found.fill(0)
    return found


def _task(name: str, a: Array, b: Array, n: int, times: int = 0) -> Task:
    function = library_function(f"collage_speed_{name}")
    assert function is not None
    return Task(function, a=int(a.ctypes.data), b=int(b.ctypes.data), n=n, c=times, keep=(a, b))
