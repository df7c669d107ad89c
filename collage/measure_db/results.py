"""Outcomes of measuring a candidate: typed values, never a sentinel number."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from collage.core.nvml import Clocks

GATE = 5
"""The edition of the numerics gate that makes outcomes. Outcomes of earlier editions are kept in the database, and what
they are about is measured again when it is needed. Edition 1 compared outputs for the usual inputs only, edition 2 had
no equal numbers, edition 3 no rows of negative infinities, and in edition 4 NaN of small operands hid that of large
ones."""
IN_NETWORK = "in the network"
"""The beginning of the message about a kernel that is right by itself, and fails in a network."""


@dataclass(frozen=True)
class Timing:
    """The time of one call in microseconds, from ``repeats`` samples.

    ``noise_us`` is the half-width of the 95 % confidence interval of the median; see ``noise``. ``busy`` is
    the share of the cores that others had meanwhile, from 0 to 1, or None if that is not known. It decides nothing.
    """

    median_us: float
    noise_us: float
    min_us: float
    p90_us: float
    repeats: int
    busy: float | None = None


class RejectionKind(Enum):
    """Why a candidate has no cost."""

    UNSUPPORTED = "unsupported"
    FAILED = "failed"
    CRASHED = "crashed"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    INACCURATE = "inaccurate"


@dataclass(frozen=True)
class Measurement:
    """Time of one call of a kernel, in microseconds, over ``repeats`` calls, in the cache state of its network.

    ``noise_us`` is the half-width of the 95 % confidence interval of the median. ``max_error`` is the largest absolute
    error against the reference on ordinary inputs, in units of the element's scale (see ``scales``); for a kernel of
    reduced precision, the largest one of noise that has the power of its errors. ``tuning`` is the record of Tuner.tune
    that builds the kernel again, or "" where nothing was tuned. ``finite_only`` tells that its outputs differ from ONNX
    Runtime's where inputs hold NaN, infinities or large integers (see ``InputKind``), so that a module has to guard it.
    ``busy`` is as in ``Timing``. ``clocks`` are those of the GPU at the end of the race, or None for a kernel on the
    CPU, or if they are not known.
    """

    median_us: float
    noise_us: float
    min_us: float
    repeats: int
    max_error: float
    tuning: str = ""
    finite_only: bool = False
    busy: float | None = None
    clocks: Clocks | None = None


@dataclass(frozen=True)
class Rejection:
    """A candidate that cannot be used, and why.

    ``free_bytes`` is what a GPU had left of its memory before a candidate that has found too little there, or what the
    worker could have of the host's. If much more is free at another time, the candidate is tried again.
    """

    kind: RejectionKind
    message: str
    free_bytes: int | None = None


_LATE = "took more than {:g} s"
_LATE_IN = re.compile(r"took more than ([0-9.e+-]+) s")


def late(limit_s: float) -> str:
    """The message about a candidate that took more than so many seconds."""
    return _LATE.format(limit_s)


def limit_in(message: str) -> float | None:
    """The seconds in such a message; None for others."""
    found = _LATE_IN.search(message)
    try:
        return None if found is None else float(found[1])
    except ValueError:
        return None


@dataclass(frozen=True)
class Slower:
    """A kernel that lost a race: it takes ``least_us`` microseconds or more, and a rival of it takes ``rival_us``.

    The rival computes the same operators, perhaps in other storage formats. ``repeats`` is the number of samples, after
    which the kernel was known to be slower and was let go. Its outputs were compared with the reference on the usual
    inputs only, so it has to be measured to the end before it may run in a network. Where ``repeats`` is 0 it was not
    even built: a lower bound, or many races of its kind, have told enough. ``busy``, ``clocks`` and ``tuning`` are
    as in ``Measurement``.
    """

    least_us: float
    rival_us: float
    repeats: int
    busy: float | None = None
    clocks: Clocks | None = None
    tuning: str = ""

    def __str__(self) -> str:
        if not self.repeats:
            return "not measured: by known times it cannot beat another kernel"
        percent = (self.least_us / self.rival_us - 1) * 100 if self.rival_us > 0 else 0.0
        if percent < 1:
            return "not faster than another kernel of the same operators"
        return f"at least {percent:.0f} % slower than another kernel of the same operators"


Outcome: TypeAlias = Measurement | Rejection | Slower
"""What came of measuring a candidate."""
