"""Factors that correct predicted errors, one for each kind of kernel, from the measured errors of plans.

Predictions are wrong in the same way for all kernels of a backend in a precision: rounding factors to 8 bits, for
example, is no noise that averages out. A measured error is that of all kernels of a plan together. So the factors are
fitted to all measured plans at once: they explain the errors, and are as near to 1 as possible.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

Kind: TypeAlias = "tuple[str, str]"
"""A kind of kernels: the names of a backend and of a precision."""

_OF_PLAN = 0.3
"""The standard deviation of the logarithm of a plan's error, around the prediction with the right factors."""
_OF_ALL, _OF_KIND = 0.7, 0.9
"""The standard deviations of the logarithms of the factor that all kinds share, and of each kind's own factor."""
_STEPS = 20
"""Steps of the Gauss-Newton method. Some five are enough."""


@dataclass(frozen=True)
class Seen:
    """A plan that was run, and its error.

    ``added`` is what each kind of its kernels is predicted to add without any factor, in the unit of
    ``Candidate.error`` (a square).
    """

    added: Mapping[Kind, float]
    error: float


@dataclass(frozen=True)
class Factors:
    """Factors by which errors are larger than predicted: those of some kinds of kernels, and of all others."""

    of_kinds: Mapping[Kind, float]
    of_others: float = 1.0

    def of(self, kind: Kind) -> float:
        """The factor of a kind of kernels."""
        return self.of_kinds.get(kind, self.of_others)


def factors_by(seen: Sequence[Seen]) -> Factors:
    """The likeliest factors, given the errors of plans: the maximum of the posterior, all spreads being log-normal.

    Plans without an error, and plans without a kernel of reduced precision, do not count.
    """
    told = [each for each in seen if each.error > 0 and math.fsum(each.added.values()) > 0]
    kinds = sorted({kind for each in told for kind, added in each.added.items() if added > 0})
    if not kinds:
        return Factors({})
    added = np.array([[each.added.get(kind, 0.0) for kind in kinds] for each in told])
    wanted = np.log([each.error for each in told])
    logs = np.zeros(1 + len(kinds))  # of the shared factor, and of each kind's own one
    own = np.diag([1 / _OF_ALL, *[1 / _OF_KIND] * len(kinds)])
    for _ in range(_STEPS):
        squares = added * np.exp(2 * (logs[0] + logs[1:]))
        totals = squares.sum(axis=1)
        shares = squares / totals[:, None]
        slopes = np.column_stack([np.ones(len(told)), shares]) / _OF_PLAN
        left = np.concatenate([(wanted - np.log(totals) / 2) / _OF_PLAN, -own @ logs])
        step = np.linalg.lstsq(np.vstack([slopes, own]), left, rcond=None)[0]
        logs = logs + np.clip(step, -1, 1)
    return Factors(
        {kind: math.exp(logs[0] + each) for kind, each in zip(kinds, logs[1:], strict=True)},
        math.exp(logs[0]),
    )
