"""Measuring a machine's speeds, which the worker does once for each machine.

Loops that do one thing give the limits: arithmetic, each cache, the memory, barriers. Some kernels of our own are then
run on shapes of real networks, each with several sizes of its blocks. All of it takes turns, so that another program,
which slows all for a while, does not decide. Of a speed the best sample counts, and of block sizes the median of the
ratios to the usual size in the same round.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

from collage.core.caches import Cache, caches
from collage.kernel.machine_speeds import WRITTEN_DOWN, Blocking, Level, MachineSpeeds, rounded
from collage.measure.machine.quiet import quiet_machine
from collage.measure.machine.speed_kernels import BLOCKS, SpeedKernels
from collage.measure.worker.protocol import MeasuredSpeeds
from collage.native import core_problem
from collage.native.kernel_library import kernels_problem
from collage.native.speed import Memory, Sampled, arithmetic, barrier, can_measure, transfer, wake

log = logging.getLogger(__name__)

_FEWEST_ROUNDS = 5
_MEMORY_BYTES = (64 << 20, 128 << 20)
"""The least and the most memory that is read and written. It is four times the last cache."""
_PARTS = 16
_BETTER, _OFTEN = 0.97, 0.75
"""Another size of blocks than the usual one has to take so much of the time, and in so many rounds less."""
_PLAUSIBLE_NS = (0.2, 5.0)
_GEMM_SHARE = 0.9
"""The share of the arithmetic's peak that products have where our own cannot run."""

_Transfers = Mapping[tuple[str, int], Sampled]
"""Reading and writing, by name and threads."""


def measure_speeds(threads: int, seconds: float) -> MeasuredSpeeds:
    """The machine's speeds with a team of that size, from samples of about so many seconds.

    While samples are taken, this process has the machine. The speeds are ``WRITTEN_DOWN`` where nothing can be
    measured: without the native core, or without memory to spare.
    """
    if core_problem() or not can_measure():
        return MeasuredSpeeds(replace(WRITTEN_DOWN, threads=threads))
    try:
        measurement = _SpeedMeasurement(threads)
        with quiet_machine() as watch:
            found = rounded(measurement.run(seconds))
        return MeasuredSpeeds(found, watch.busy)
    except MemoryError:
        log.info("there is too little memory to measure the machine's speeds")
        return MeasuredSpeeds(replace(WRITTEN_DOWN, threads=threads))


@dataclass(frozen=True)
class _Loops:
    """The loops for one level of memory."""

    cache: Cache | None
    transfers: _Transfers


class _SpeedMeasurement:
    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._counts = tuple(dict.fromkeys((1, threads)))
        self._arithmetic = {count: arithmetic(count) for count in self._counts}
        self._barrier, self._wake = barrier(threads), wake(threads)
        self._levels = self._loops(caches())
        self._kernels = None if kernels_problem() else SpeedKernels(threads)

    def run(self, seconds: float) -> MachineSpeeds:
        """Take samples for so long, and tell what they say."""
        everything = [*self._all()]
        end, rounds = time.perf_counter() + seconds, 0
        while rounds < _FEWEST_ROUNDS or time.perf_counter() < end:
            for each in everything:
                each.sample()
            rounds += 1
        team = self._arithmetic[self._threads].per_second / self._threads
        peak = max(self._arithmetic[1].per_second, team) / 1e9
        found = MachineSpeeds(
            threads=self._threads,
            peak_gflops=peak,
            gemm_gflops=_GEMM_SHARE * peak,
            team_gemm_gflops=_GEMM_SHARE * peak * self._threads,
            levels=tuple(self._level(each) for each in self._levels),
            barrier_us=1e6 / self._barrier.per_second,
            wake_us=1e6 * median(self._wake.samples),
            measured=True,
        )
        return found if self._kernels is None else self._with_kernels(self._kernels, found)

    def _with_kernels(self, kernels: SpeedKernels, found: MachineSpeeds) -> MachineSpeeds:
        gemm, team = (kernels.products[count].per_second / 1e9 for count in (1, self._threads))
        transforms_s = kernels.winograd.best_s - kernels.winograd_flop / (gemm * 1e9)
        least, most = _PLAUSIBLE_NS
        sizes = {name: _best_size(kernels.blocks[name], getattr(Blocking(), name)) for name in BLOCKS}
        return replace(
            found,
            peak_gflops=max(found.peak_gflops, gemm, team / self._threads),
            gemm_gflops=gemm,
            team_gemm_gflops=team,
            winograd_ns=min(most, max(least, 1e9 * transforms_s / kernels.winograd_points)),
            blocking=Blocking(**sizes),
        )

    def _all(self) -> Iterable[Sampled]:
        yield from self._arithmetic.values()
        yield self._barrier
        yield self._wake
        for level in self._levels:
            yield from level.transfers.values()
        if self._kernels is not None:
            yield from self._kernels.all

    def _loops(self, found: tuple[Cache, ...]) -> list[_Loops]:
        levels, before = [], 0
        for cache in found:
            # Half of a core's own cache; of a shared one so much that the one before it holds little of it.
            size = cache.nbytes // (4 * self._threads) if cache.shared else cache.nbytes // 2
            if size < 2 * before and 4 * before * self._threads <= cache.nbytes:
                size = 2 * before
            levels.append(_Loops(cache, self._transfers(partial(transfer, nbytes=size))))
            before = cache.nbytes
        least, most = _MEMORY_BYTES
        memory = Memory(min(most, max(least, 4 * found[-1].nbytes)), _PARTS)
        levels.append(_Loops(None, self._transfers(memory.transfer)))
        return levels

    def _transfers(self, make: Callable[[str, int], Sampled]) -> _Transfers:
        return {(name, count): make(name, count) for name in ("read", "write") for count in self._counts}

    def _level(self, loops: _Loops) -> Level:
        gbs = {key: each.per_second / 1e9 for key, each in loops.transfers.items()}
        cache, team = loops.cache, self._threads
        return Level(
            0 if cache is None else cache.nbytes,
            cache is None or cache.shared,
            *(gbs[name, count] for count in (1, team) for name in ("read", "write")),
        )


def _best_size(by_size: Mapping[int, Sampled], usual: int) -> int:
    """The size that is faster than the usual one beyond doubt, or the usual one."""
    best, best_ratio = usual, _BETTER
    for size, each in by_size.items():
        ratios = [mine / its for mine, its in zip(each.samples, by_size[usual].samples, strict=True)]
        often = sum(ratio < 1 for ratio in ratios) >= _OFTEN * len(ratios)
        if size != usual and often and median(ratios) < best_ratio:
            best, best_ratio = size, median(ratios)
    return best
