"""C structs that are filled from Python."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

from collage.core.typed import MalformedError, shown


def structure(kind: type[ctypes.Structure], values: Mapping[str, Any]) -> ctypes.Structure:
    """Make a C struct from values by field name; sequences fill arrays and nested structs.

    Raises MalformedError for a missing value, and for one that the field cannot hold, which ctypes would truncate.
    """
    found = kind()
    for name, of in kind._fields_:  # type: ignore[misc]
        if name not in values:
            raise MalformedError(f"it lacks {name}")
        setattr(found, name, _field(name, of, values[name]))
    return found


def _field(name: str, of: Any, value: Any) -> Any:
    if issubclass(of, (ctypes.Array, ctypes.Structure)):
        kinds = [of._type_] * of._length_ if issubclass(of, ctypes.Array) else [k for _, k in of._fields_]
        if not isinstance(value, (list, tuple)) or len(value) != len(kinds):
            raise MalformedError(f"{name} is {shown(value)}, not {len(kinds)} numbers")
        return of(*(_field(name, each, number) for each, number in zip(kinds, value, strict=True)))
    if of in (ctypes.c_float, ctypes.c_double):
        if not isinstance(value, (int, float)):
            raise MalformedError(f"{name} is {shown(value)}, not a number")
        return float(value)
    if not isinstance(value, int) or of(value).value != value:
        raise MalformedError(f"{name} is {shown(value)}, not a whole number of {8 * ctypes.sizeof(of)} bits")
    return value
