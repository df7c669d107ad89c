"""The C structs that tell our kernels the shape of their work."""

from __future__ import annotations

import ctypes


def shape_struct(*fields: str | tuple[str, int]) -> type[ctypes.Structure]:
    """A struct of 64-bit integers and, at its end, the bounds of the clamp, ``low`` and ``high``.

    A pair is an array: its name, and how many numbers it has.
    """
    integers = [
        (field, ctypes.c_int64) if isinstance(field, str) else (field[0], ctypes.c_int64 * field[1])
        for field in fields
    ]
    bounds = [("low", ctypes.c_float), ("high", ctypes.c_float)]
    return type("Shape", (ctypes.Structure,), {"_fields_": (*integers, *bounds)})
