"""C structs filled from Python."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any


def structure(kind: type[ctypes.Structure], values: Mapping[str, Any]) -> ctypes.Structure:
    """A C struct from values by field name; sequences fill arrays and nested structs."""
    found = kind()
    for name, of in kind._fields_:  # type: ignore[misc]
        value = values[name]
        setattr(found, name, of(*value) if isinstance(value, (list, tuple)) else value)
    return found
