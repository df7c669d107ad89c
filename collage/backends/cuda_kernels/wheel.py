"""Libraries of NVIDIA that come as wheels, or are installed in the system."""

from __future__ import annotations

import ctypes
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

__all__ = ["load_library", "version_of"]


def load_library(name: str) -> ctypes.CDLL:
    """Load the library from a wheel, else from where the system has it. Raises OSError where it cannot be loaded."""
    spec = find_spec("nvidia")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    paths = [str(path) for folder in folders for path in sorted(Path(folder).glob(f"*/lib/{name}"))]
    return ctypes.CDLL((paths or [name])[0])


def version_of(wheel: str, name: str) -> str:
    """The version of the wheel, "from the system" for a library that is no wheel, or "" where there is none."""
    try:
        return metadata.version(wheel)
    except metadata.PackageNotFoundError:
        try:
            load_library(name)
        except OSError:
            return ""
        return "from the system"
