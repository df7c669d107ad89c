"""How busy the machine was while something was measured: one number, ``busy``, which is kept with each measurement.

It is 0 on an idle machine and at most 1. It is the larger one of two shares:

- of the cores that the measurement needed, the share that others had: other processes, and other machines on the same
  hardware (time stolen);
- the share by which a short calibration was slower, before and after the measurement, than the best one that is known
  of this machine (see ``collage.measure.machine.calibration``).

A measurement whose number is above the limit is marked. It is made again where it is needed and the machine is quiet.
"""

from __future__ import annotations

import os

BUSY_VARIABLE = "COLLAGE_BUSY_LIMIT"
"""Environment variable with the limit. With 1 no machine is busy, and nothing is measured again."""

_LIMIT = 0.1
"""An idle machine has up to 0.05, since clocks of the cores tick each 10 ms: 0.04 of a quarter of a second. A process
that keeps one of two cores busy makes it 0.25 beside a kernel on two threads, and 0.5 beside an idle program."""

_MOST_PATIENCE = 4.0


def busy_limit() -> float:
    """The number above which the machine counts as busy."""
    try:
        return float(os.environ.get(BUSY_VARIABLE, ""))
    except ValueError:
        return _LIMIT


def is_busy(busy: float | None) -> bool:
    """Whether that is above the limit. What was measured before the number existed is not."""
    return busy is not None and busy > busy_limit()


def quietness(busy: float | None) -> tuple[bool, float]:
    """A value that is larger for a quieter machine. An unknown number counts as one at the limit.

    The limit is the usual one, whatever it is in this process, so that a merge has the same result everywhere.
    """
    known = _LIMIT if busy is None else busy
    return known <= _LIMIT, -known


def patience(busy: float) -> float:
    """How many times as long samples are taken on such a machine, from 1 to 4."""
    return min(_MOST_PATIENCE, 1.0 + 6.0 * busy) if is_busy(busy) else 1.0


def in_words(busy: float) -> str:
    """What a busy machine means for people who wait for it."""
    return f"the machine is busy: others take {busy:.0%} of it, measuring takes {patience(busy):.1f} times as long"
