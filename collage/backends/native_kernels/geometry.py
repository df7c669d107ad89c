"""Shapes as our kernels take them: three spatial axes, the distances between elements, and C structs."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence

import numpy as np

from collage.backends.chains.chain import Floats
from collage.graph.storage import BLOCK, BLOCKED, Storage


def three(numbers: Sequence[int], missing: int = 1) -> tuple[int, int, int]:
    """One number each for planes, rows and columns. Axes that are not there get the number ``missing``."""
    planes, rows, columns = (*[missing] * (3 - len(numbers)), *numbers)
    return planes, rows, columns


def strides(channels: int, spatial: tuple[int, int, int], layout: Storage) -> tuple[int, int, int, int, int]:
    """Floats from one image, block of 16 channels, plane, row and pixel to the next.

    The layout is blocked or channels-last.
    """
    blocked = layout == BLOCKED
    pixel = BLOCK if blocked else channels
    rows, columns = spatial[1:]
    block = math.prod(spatial) * BLOCK if blocked else BLOCK
    image = math.prod(spatial) * (-(-channels // BLOCK) * BLOCK if blocked else channels)
    return image, block, rows * columns * pixel, columns * pixel, pixel


def padded(terms: Floats | None, count: int) -> Floats:
    """So many terms, or zeros, and zeros up to the end of the last block."""
    return np.pad(np.zeros(count, np.float32) if terms is None else terms, (0, -count % BLOCK))


def shape_struct(*fields: str | tuple[str, int], clamps: bool = True) -> type[ctypes.Structure]:
    """The C struct with a kernel's numbers: 64-bit integers and, if the kernel ``clamps``, the bounds at the end.

    A pair is an array: its name and length.
    """
    integers = [
        (field, ctypes.c_int64) if isinstance(field, str) else (field[0], ctypes.c_int64 * field[1]) for field in fields
    ]
    bounds = [("low", ctypes.c_float), ("high", ctypes.c_float)] if clamps else []
    return type("Shape", (ctypes.Structure,), {"_fields_": (*integers, *bounds)})
