"""A short piece of arithmetic whose time tells whether the machine is as fast as it was at its best."""

from __future__ import annotations

import hashlib
import platform
import time

import numpy as np

from collage.measure_db.database import Database
from collage.measure_db.keys import Fact, FactKey, as_number

_ELEMENTS, _ROUNDS = 2048, 150
"""Some 55 us of multiplications in the first-level cache."""
_RUNS = 3
_PROBES = 20
_TOLERANCE = 1.2
"""On an idle machine the least of some runs is up to 1.15 times the best one that was ever seen."""
_BETTER = 0.99

_BEST_US: Fact[float] = Fact("calibration_us", float, as_number)


def calibration_us(runs: int = _RUNS) -> float:
    """The microseconds of the arithmetic, as the least of some runs."""
    left, right = np.full(_ELEMENTS, 1.5, np.float32), np.full(_ELEMENTS, 0.5, np.float32)
    out = np.empty_like(left)
    best = float("inf")
    for _ in range(runs):
        start = time.perf_counter_ns()
        for _ in range(_ROUNDS):
            np.multiply(left, right, out=out)
        best = min(best, time.perf_counter_ns() - start)
    return best / 1e3


def slowed(now_us: float, best_us: float) -> float:
    """The share by which the machine is slower than at its best, from 0 to 1."""
    return max(0.0, 1.0 - _TOLERANCE * best_us / max(now_us, 1e-9))


def best_calibration_us(database: Database, hardware: str) -> float:
    """The best time that is known of this machine, which is calibrated now and remembered where it was better."""
    now = calibration_us(_RUNS * _PROBES)
    key = _key(hardware)
    known = key.look_up(database)
    if known is None or now < _BETTER * known:
        key.record(database, now)
    return now if known is None else min(now, known)


def known_calibration_us(database: Database, hardware: str) -> float | None:
    """The best time that is known of this machine, or None."""
    return _key(hardware).look_up(database)


def _key(hardware: str) -> FactKey[float]:
    """The key has a hash of the machine's name, since machines with the same CPU may have other clock rates."""
    name = hashlib.sha256(platform.node().encode()).hexdigest()[:8]
    return _BEST_US.at(f"{hardware}; machine {name}; numpy {np.__version__}")
