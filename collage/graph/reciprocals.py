"""Divisors by which a quotient is the product with their reciprocal, bit for bit."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def are_powers_of_two(divisors: ArrayLike) -> bool:
    """Whether all are powers of two, of either sign. The reciprocal of another number is rounded: 41 * (1 / 41) < 1."""
    mantissas, _ = np.frexp(np.asarray(divisors, np.float64))
    return bool((np.abs(mantissas) == 0.5).all())
