"""How fast a machine is, as planning needs it: a value that is measured once for each machine.

``WRITTEN_DOWN`` has the numbers of the machine that the kernels were written on. They count if nothing is measured.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, fields, replace
from functools import lru_cache
from typing import Any


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
    """The speeds of a machine, for a team of ``threads`` threads.

    - ``gemm_gflops``, ``team_gemm_gflops``: our float32 matrix product, on one thread and on the team.
    - ``own_cache_bytes``: the size of the largest cache that a core does not share.
    - ``last_cache_gbs``: reading the last cache with one thread, in GB/s.
    - ``memory_gbs``, ``team_memory_gbs``: reading the memory, with one thread and with the team.
    - ``barrier_us``: a barrier of the team.
    - ``winograd_ns``: a core's time for one point of a tile of 16 channels in Winograd's transforms.
    - ``measured``: whether these are measurements.
    """

    threads: int = 2
    gemm_gflops: float = 240.0
    team_gemm_gflops: float = 480.0
    own_cache_bytes: int = 1 << 20
    last_cache_gbs: float = 120.0
    memory_gbs: float = 40.0
    team_memory_gbs: float = 40.0
    barrier_us: float = 0.5
    winograd_ns: float = 0.75
    blocking: Blocking = Blocking()
    measured: bool = False

    def flop_in(self, microseconds: float) -> int:
        """The floating-point operations of our product on one thread in that time."""
        return round(microseconds * self.gemm_gflops * 1e3)


WRITTEN_DOWN = MachineSpeeds()
"""The speeds of the machine that the kernels were written on: two cores of Zen 5 with 1 MB of L2 each."""


def rounded(speeds: MachineSpeeds) -> MachineSpeeds:
    """The same with two significant digits of each measured number, since a third one is different each time."""
    numbers: dict[str, Any] = {field.name: getattr(speeds, field.name) for field in fields(speeds)}
    changes: dict[str, Any] = {n: _two_digits(each) for n, each in numbers.items() if isinstance(each, float)}
    return replace(speeds, **changes)


def _two_digits(number: float) -> float:
    return 0.0 if not number else round(number, 1 - math.floor(math.log10(abs(number))))
