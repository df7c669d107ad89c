"""How fast a machine is, as planning needs it: a value that is measured once for each machine.

``WRITTEN_DOWN`` has the numbers of the machine that the kernels were written on. They count if nothing is measured.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, fields, replace
from functools import lru_cache
from typing import Any, TypeVar


@dataclass(frozen=True)
class Level:
    """A cache, or the memory: ``nbytes`` is what a core has of it to itself or together with others; memory has 0.

    Speeds are in GB/s: of one thread, and of the whole team.
    """

    nbytes: int
    shared: bool
    read_gbs: float
    write_gbs: float
    team_read_gbs: float
    team_write_gbs: float


@dataclass(frozen=True)
class Blocking:
    """How much of its operands a native kernel works on at a time. It is measured by running each with several.

    The defaults are the best on a core with 1 MB of L2 (Zen 5):

    - ``winograd_bytes`` of transformed values. 64 to 256 channels take as long with half as much.
    - ``strassen_bytes`` are of a kernel that was removed. They are still in recorded speeds and in keys.
    - ``shallow_bytes`` of transformed rows and products.
    - ``narrow_bytes`` of the input's rows with pixels innermost.
    - ``gemm_depth``: the most of the depth. With 1024 a panel of 48 columns has 200 kB, and 64 rows have 256 kB.
    """

    winograd_bytes: int = 1_200_000
    strassen_bytes: int = 450_000
    shallow_bytes: int = 600_000
    narrow_bytes: int = 500_000
    gemm_depth: int = 1024

    def __str__(self) -> str:
        """The fields that differ from the defaults, or "": part of the key of measurements."""
        return _differences(self)


@lru_cache(maxsize=16)  # the keys of all measurements ask for it
def _differences(blocking: Blocking) -> str:
    usual = zip(fields(blocking), astuple(blocking), astuple(Blocking()), strict=True)
    return " ".join(f"{each.name}={mine}" for each, mine, default in usual if mine != default)


@dataclass(frozen=True)
class MachineSpeeds:
    """What is measured of a machine, for a team of ``threads`` threads.

    - ``peak_gflops``: float32 multiplications and additions of one thread in registers, which no kernel exceeds.
    - ``gemm_gflops``, ``team_gemm_gflops``: those of our matrix product, on one thread and on the team.
    - ``levels``: the caches from the first one on, and the memory.
    - ``barrier_us``, ``wake_us``: a barrier of the team, and the first launch after its threads have gone to sleep.
    - ``winograd_ns``: a core's time for one point of a tile of 16 channels in Winograd's transforms.
    - ``measured``: whether these are measurements, so that bounds may be derived from them.
    """

    threads: int = 2
    peak_gflops: float = 250.0
    gemm_gflops: float = 240.0
    team_gemm_gflops: float = 480.0
    levels: tuple[Level, ...] = (
        Level(48 << 10, False, 420.0, 230.0, 840.0, 460.0),
        Level(1 << 20, False, 120.0, 220.0, 240.0, 440.0),
        Level(32 << 20, True, 120.0, 110.0, 230.0, 200.0),
        Level(0, True, 40.0, 35.0, 40.0, 35.0),
    )
    barrier_us: float = 0.5
    wake_us: float = 12.0
    winograd_ns: float = 0.75
    blocking: Blocking = Blocking()
    measured: bool = False

    @property
    def memory(self) -> Level:
        """The level behind all caches."""
        return self.levels[-1]

    @property
    def last_cache(self) -> Level:
        """The cache before the memory, or the memory itself if there is none."""
        return self.levels[max(0, len(self.levels) - 2)]

    @property
    def own_cache_bytes(self) -> int:
        """The size of the largest cache that a core does not share, in bytes, or that of the first one."""
        own = [each.nbytes for each in self.levels if not each.shared]
        return max(own, default=self.levels[0].nbytes)

    def memory_gbs(self, threads: int) -> float:
        """The speed of reading memory with one thread, or with all."""
        return self.memory.read_gbs if threads == 1 else self.memory.team_read_gbs

    def flop_in(self, microseconds: float) -> int:
        """The floating-point operations that our product does on one thread in that time."""
        return round(microseconds * self.gemm_gflops * 1e3)


T = TypeVar("T", Level, MachineSpeeds)

WRITTEN_DOWN = MachineSpeeds()
"""The speeds of the machine that the kernels were written on: two cores of Zen 5 with 1 MB of L2 each."""


def rounded(speeds: MachineSpeeds) -> MachineSpeeds:
    """The same with two significant digits of each measured number, since a third one is different each time."""
    levels = tuple(_rounded(each) for each in speeds.levels)
    return replace(_rounded(speeds), levels=levels)


def _rounded(value: T) -> T:
    numbers: dict[str, Any] = {field.name: getattr(value, field.name) for field in fields(value)}
    changes: dict[str, Any] = {n: _two_digits(each) for n, each in numbers.items() if isinstance(each, float)}
    return replace(value, **changes)


def _two_digits(number: float) -> float:
    return 0.0 if not number else round(number, 1 - math.floor(math.log10(abs(number))))
