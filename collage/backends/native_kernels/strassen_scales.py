"""Powers of two that bring the rows and columns of a constant matrix to like magnitudes, which is exact."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collage.backends.chains.chain import Floats

_ALIKE = 3
"""Rows that differ by no more than a factor of 2 to the power of this are left as they are."""
_MOST_DEPTH, _MOST_COLUMN = 30, 60
"""The largest exponents. What would need larger ones is lost in float32's range in any case."""


@dataclass(frozen=True)
class Balanced:
    """The matrix (K, N) is ``depth[:, None] * weights * columns``. Where ``depth`` is None it is all ones.

    Both are powers of two, and 0 for rows and columns of zeros.
    """

    weights: Floats
    depth: Floats | None
    columns: Floats


def balanced(weights: Floats) -> Balanced:
    """A matrix whose columns, and whose rows where these differ, have largest elements of like magnitude."""
    sizes = np.abs(weights).max(0)
    columns = np.clip(_exponents(sizes), -_MOST_COLUMN, _MOST_COLUMN)
    scaled, back = np.ldexp(weights, -columns), _powers(columns, sizes)
    sizes = np.abs(scaled).max(1)
    depth = np.clip(_exponents(sizes), -_MOST_DEPTH, _MOST_DEPTH)
    if (sizes > 0).all() and np.ptp(depth) <= _ALIKE:
        return Balanced(scaled, None, back)
    return Balanced(np.ldexp(scaled, -depth[:, None]), _powers(depth, sizes), back)


def _exponents(sizes: Floats) -> npt.NDArray[np.intc]:
    """The exponents of the powers of two next to each size's ratio to the median, mostly 0 where sizes are alike."""
    if not sizes.any():
        return np.zeros(sizes.shape, np.intc)
    ratios = sizes.astype(np.float64) / np.median(sizes[sizes > 0])
    return np.rint(np.log2(ratios, where=ratios > 0, out=np.zeros_like(ratios))).astype(np.intc)


def _powers(exponents: npt.NDArray[np.intc], sizes: Floats) -> Floats:
    return np.where(sizes > 0, np.ldexp(np.float32(1), exponents), 0).astype(np.float32)
