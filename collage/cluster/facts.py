"""What a machine's measurements depend on: its processor, its cores, and the versions of all that takes part."""

from __future__ import annotations

import hashlib
import pickle
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from collage._version import __version__
from collage.core.library_text import library_text
from collage.kernel.target import cores, host

_LIBRARIES = ("apache-tvm", "apache-tvm-ffi", "numpy", "onnx", "onnxruntime")


@dataclass(frozen=True)
class MachineFacts:
    """A machine's facts. Measurements of one serve another one where these are equal.

    ``device`` and ``flags`` are those of Target. ``collage`` is the version with a hash of the source. ``versions`` has
    those of libraries and of backends, each by its name; a backend that cannot be used there has the reason.
    """

    device: str
    flags: str
    cores: int
    python: str
    collage: str
    versions: Mapping[str, str] = field(default_factory=dict)

    def as_plain(self) -> dict[str, Any]:
        """The facts as a dictionary of numbers and texts, which another version of Collage reads, too."""
        return {**vars(self), "versions": dict(self.versions)}

    @staticmethod
    def of_plain(plain: Mapping[str, Any]) -> MachineFacts:
        """The facts that ``as_plain`` has made, maybe in another version; what is missing there is "" or 0."""
        return MachineFacts(
            device=str(plain.get("device", "")),
            flags=str(plain.get("flags", "")),
            cores=int(plain.get("cores", 0)),
            python=str(plain.get("python", "")),
            collage=str(plain.get("collage", "")),
            versions={str(name): str(version) for name, version in plain.get("versions", {}).items()},
        )


def facts_here(backends: Mapping[str, bytes]) -> dict[str, Any]:
    """The facts of the machine on which this is called, as ``MachineFacts.as_plain`` has them.

    ``backends`` are pickled, by name, so that those of other packages are asked, too.
    """
    target = host()
    versions = {f"backend {name}": _backend_version(data) for name, data in backends.items()}
    return MachineFacts(
        target.device,
        target.flags,
        cores().usable,
        platform.python_version(),
        f"{__version__} ({_source_hash()})",
        {**{name: _version(name) for name in _LIBRARIES}, **versions},
    ).as_plain()


def differences(here: MachineFacts, there: MachineFacts) -> list[str]:
    """List in words how the other machine differs from this one. The list is empty where it matches."""
    found = []
    if there.device != here.device:
        found.append(f"its CPU is {there.device}, not {here.device}")
    elif there.flags != here.flags:
        found.append(f"its CPU has other instruction sets ({there.flags}, not {here.flags})")
    if there.cores != here.cores:
        found.append(f"it has {there.cores} core{'s' if there.cores != 1 else ''} to use, not {here.cores}")
    if _minor(there.python) != _minor(here.python):
        found.append(f"it has Python {there.python}, not {here.python}")
    if there.collage != here.collage:
        found.append(f"it has Collage {there.collage}, not {here.collage}")
    for name, version in sorted(here.versions.items()):
        other = there.versions.get(name, "")
        if other != version:
            found.append(f"it has {name} {other}, not {version}" if other else f"it has no {name}")
    return found


def _minor(python: str) -> str:
    return ".".join(python.split(".")[:2])


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _backend_version(data: bytes) -> str:
    """The backend's version, or the reason why it cannot be used here."""
    try:
        found = pickle.loads(data).available()
    except Exception as error:  # unpickling runs the backend's own code, which may raise anything
        return f"({type(error).__name__}: {library_text(error)})"
    return str(found.version) if found else f"({found.reason})"


@cache
def _source_hash() -> str:
    """A hash of the package's source: while Collage is developed, many sources have the same version."""
    root = Path(__file__).parents[1]
    hasher = hashlib.sha256()
    for path in sorted(each for each in root.rglob("*") if each.suffix in (".py", ".cpp", ".h")):
        hasher.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return hasher.hexdigest()[:8]
