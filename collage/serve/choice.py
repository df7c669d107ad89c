"""The native choice of tokens from rows of logits; see ``native/kernels/sampling.cpp``."""

from __future__ import annotations

import ctypes
import struct

import numpy as np
from numpy.typing import NDArray

from collage.errors import CollageError
from collage.kernel.buffers import aligned_empty
from collage.native import LaunchList, Step, Task, team_of
from collage.native.kernel_library import NOT_BUILT, library_function

HOW = struct.Struct("=ddddq")
"""How the token of a row is chosen: scale, top-p, min-p, draw and top-k of the C struct ``collage_sampling_choice``."""

_SPAN = 256
"""The logits of a span, as in sampling.h; each thread has room for whole spans."""
_GROWTH = 2


class Chooser:
    """Chooses tokens with the team of so many ``threads``, a row of logits on each. One thread may use it at a time."""

    def __init__(self, vocabulary: int, threads: int = 1) -> None:
        """Prepare for rows of ``vocabulary`` logits. Raises CollageError without the native kernels."""
        function = library_function("collage_sampling_choose")
        if function is None:
            raise CollageError(NOT_BUILT)
        room = -(-vocabulary // _SPAN) * _SPAN
        self._weights = aligned_empty((threads, room), "float32")
        self._batch = _Batch(weights=self._weights.ctypes.data, vocabulary=vocabulary, shares=threads)
        place = ctypes.addressof(self._batch)
        tasks = tuple(Task(function, b=place, n=share, keep=(self._batch,)) for share in range(threads))
        self._run = LaunchList(team_of(threads), [Step(tasks)])
        self._grow(1)

    def choose(self, rows: NDArray[np.int64], how: bytes) -> list[int]:
        """The token of each row, or -1 where its logits are not numbers.

        ``rows`` has the addresses of rows of float32 logits, which the caller keeps, and ``how`` a ``HOW`` for each.
        """
        count = len(rows)
        if count > len(self._tokens):
            self._grow(_GROWTH * count)
        self._batch.count = count
        self._batch.rows, self._batch.choices = rows.ctypes.data, how
        self._run()
        tokens: list[int] = self._tokens[:count].tolist()
        return tokens

    def _grow(self, count: int) -> None:
        self._tokens = np.empty(count, np.int64)
        self._batch.tokens = self._tokens.ctypes.data


def addresses(logits: NDArray[np.float32]) -> NDArray[np.int64]:
    """The address of each row of a matrix [rows, vocabulary], whose rows have their elements beside each other."""
    found: NDArray[np.int64] = logits.ctypes.data + logits.strides[0] * np.arange(len(logits), dtype=np.int64)
    return found


class _Batch(ctypes.Structure):
    """The C struct ``collage_sampling_batch``."""

    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("choices", ctypes.c_char_p),
        ("tokens", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in "count vocabulary shares".split()),
    )
