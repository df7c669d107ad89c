"""Loading the core's shared library, which `setup.py` builds in the folder of this file."""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from collage.errors import CollageError


@cache
def core_problem() -> str:
    """The reason why the native core cannot be used here, and the way to mend that, or "" when it can be used."""
    try:
        _load()
    except (OSError, AttributeError) as error:  # AttributeError: one built from older sources
        return (
            f"Collage's native core cannot be used: {error}. It is built when Collage is installed from source and "
            "a C++17 compiler is found: install one (Debian: apt install g++) and install Collage again."
        )
    return ""


def core() -> ctypes.CDLL:
    """The core's functions (see core.h). Raises CollageError when it was not built."""
    if problem := core_problem():
        raise CollageError(problem)
    return _load()


def address_of(function: object) -> int:
    """The address of a C function of a loaded library."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0  # type: ignore[arg-type]


def built(name: str) -> Path:
    """The path of an extension in the folder of this file. Raises OSError when it was not built."""
    found = (Path(__file__).parent / (name + suffix) for suffix in EXTENSION_SUFFIXES)
    path = next((each for each in found if each.exists()), None)
    if path is None:
        raise OSError("it was not built")
    return path


@cache
def _load() -> ctypes.CDLL:
    library = ctypes.CDLL(str(built("_core")))
    pointer, integer, wide = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
    signatures: dict[str, tuple[object, list[object]]] = {
        "collage_team_create": (pointer, [integer, pointer, integer]),
        "collage_team_destroy": (None, [pointer]),
        "collage_team_spread": (None, [pointer, pointer, integer]),
        "collage_team_run": (integer, [pointer, pointer, wide, pointer]),
        "collage_team_park": (None, [pointer]),
        "collage_team_beware": (None, [pointer, wide]),
        "collage_end_with": (None, [integer]),
        "collage_use_openmp": (None, [pointer, pointer]),
        "collage_take_workspace": (pointer, [integer, integer, ctypes.c_uint64, integer, integer]),
        "collage_give_workspace": (integer, [integer, integer, pointer]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library
