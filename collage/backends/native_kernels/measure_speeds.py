"""Measuring a machine's speeds, which the worker does once for each machine.

Loops read the last cache and the memory, and meet at barriers. Some kernels of our own run on shapes of real networks,
each with several sizes of its blocks. All of it takes turns, so that another program, which slows all for a while, does
not decide. Of a speed the best sample counts, and of block sizes the median of the ratios to the usual size in the same
round.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from statistics import median

from collage.backends.native_kernels.speed_kernels import BLOCKS, SpeedKernels
from collage.core.caches import Cache, caches
from collage.kernel.machine_speeds import WRITTEN_DOWN, Blocking, MachineSpeeds, rounded
from collage.native import core_problem
from collage.native.kernel_library import kernels_problem
from collage.native.speed import Memory, Sampled, barrier, can_measure, reading

log = logging.getLogger(__name__)

_FEWEST_ROUNDS = 5
_MEMORY_BYTES = (64 << 20, 128 << 20)
"""The least and the most memory that is read. It is four times the last cache."""
_PARTS = 16
_BETTER, _OFTEN = 0.97, 0.75
"""Another size of blocks than the usual one has to take so much of the time, and in so many rounds less."""
_PLAUSIBLE_NS = (0.2, 5.0)


def measure_speeds(threads: int, seconds: float) -> MachineSpeeds:
    """The machine's speeds with a team of that size, from samples of about so many seconds.

    The caller has the machine to itself meanwhile. The speeds are ``WRITTEN_DOWN`` where nothing can be
    measured: without the native core, or without memory to spare.
    """
    if core_problem() or not can_measure():
        return replace(WRITTEN_DOWN, threads=threads)
    try:
        return rounded(_SpeedMeasurement(threads).run(seconds))
    except MemoryError:
        log.info("there is too little memory to measure the machine's speeds")
        return replace(WRITTEN_DOWN, threads=threads)


class _SpeedMeasurement:
    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._barrier = barrier(threads)
        found = caches()
        self._own_bytes = max((each.nbytes for each in found if not each.shared), default=found[0].nbytes)
        self._cache = reading(_read_bytes(found, threads))
        least, most = _MEMORY_BYTES
        memory = Memory(min(most, max(least, 4 * found[-1].nbytes)), _PARTS)
        self._memory = {count: memory.reading(count) for count in dict.fromkeys((1, threads))}
        self._kernels = None if kernels_problem() else SpeedKernels(threads)

    def run(self, seconds: float) -> MachineSpeeds:
        """The speeds, from samples for so long."""
        everything = [*self._all()]
        end, rounds = time.perf_counter() + seconds, 0
        while rounds < _FEWEST_ROUNDS or time.perf_counter() < end:
            for each in everything:
                each.sample()
            rounds += 1
        found = MachineSpeeds(
            threads=self._threads,
            own_cache_bytes=self._own_bytes,
            last_cache_gbs=self._cache.per_second / 1e9,
            memory_gbs=self._memory[1].per_second / 1e9,
            team_memory_gbs=self._memory[self._threads].per_second / 1e9,
            barrier_us=1e6 / self._barrier.per_second,
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
            gemm_gflops=gemm,
            team_gemm_gflops=team,
            winograd_ns=min(most, max(least, 1e9 * transforms_s / kernels.winograd_points)),
            blocking=Blocking(**sizes),
        )

    def _all(self) -> Iterable[Sampled]:
        yield self._barrier
        yield self._cache
        yield from self._memory.values()
        if self._kernels is not None:
            yield from self._kernels.all


def _read_bytes(found: tuple[Cache, ...], threads: int) -> int:
    """How much to read of the last cache: half of a core's own; of a shared one so much that others hold little."""
    last = found[-1]
    size = last.nbytes // (4 * threads) if last.shared else last.nbytes // 2
    before = found[-2].nbytes if len(found) > 1 else 0
    return 2 * before if size < 2 * before and 4 * before * threads <= last.nbytes else size


def _best_size(by_size: Mapping[int, Sampled], usual: int) -> int:
    """The size that is faster than the usual one beyond doubt, or the usual one."""
    best, best_ratio = usual, _BETTER
    for size, each in by_size.items():
        ratios = [mine / its for mine, its in zip(each.samples, by_size[usual].samples, strict=True)]
        often = sum(ratio < 1 for ratio in ratios) >= _OFTEN * len(ratios)
        if size != usual and often and median(ratios) < best_ratio:
            best, best_ratio = size, median(ratios)
    return best
