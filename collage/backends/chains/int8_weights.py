"""Weights as whole numbers of 8 bits, with a factor for each output channel."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from collage.backends.base import UnsupportedError
from collage.backends.chains.chain import Floats

INT8_DEPTH = 1 << 16
"""The longest sum of products of 8 bits, 255 times 127 at most each, that 32 bits hold in any case."""

_MOST = 127
"""The largest magnitude of a weight. With -128 one sign would have a longer range than the other."""


def quantised(weights: Floats) -> tuple[npt.NDArray[np.int8], Floats]:
    """Weights (K, N) as whole numbers from -127 to 127, and the factor of each column.

    Raises UnsupportedError for NaN and infinities.
    """
    most = np.abs(weights).max(0)
    if not np.isfinite(most).all():
        raise UnsupportedError("there are NaN or infinities among the weights")
    scales = (most / _MOST).astype(np.float32)
    steps = np.rint(weights / np.where(scales > 0, scales, 1).astype(np.float64))
    return np.clip(steps, -_MOST, _MOST).astype(np.int8), scales
