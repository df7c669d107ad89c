"""The source of backends from outside of the package: when it changes, what was measured of their kernels is void.

The version of a library says nothing of the code around it, which its author changes between two compiles. So the keys
of measurements have a digest of that code, too.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from collage.backends.base import Backend

_OURS = __name__.partition(".")[0]
_MARK = ", source "
_SUFFIXES = frozenset({".py", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp"})


def keyed_version(backend: Backend, version: str) -> str:
    """The library's version as keys of measurements have it: for a backend from outside, with a digest of its source.

    The source is the file of the module that has its class. Of a module in a package it is that package's folder.
    """
    digest = source_digest(type(backend))
    return f"{version}{_MARK}{digest}" if digest else version


def keyed_versions(backends: Mapping[str, Backend], versions: Mapping[str, str]) -> dict[str, str]:
    """``keyed_version`` of each backend that has a version, by name."""
    return {name: keyed_version(backends[name], version) for name, version in versions.items()}


def plain_version(keyed: str) -> str:
    """The library's version in what ``keyed_version`` gave."""
    return keyed.rpartition(_MARK)[0] or keyed


def source_digest(kind: type) -> str:
    """A short digest of the source of a class from outside of the package, or "" for one of Collage's own.

    Classes that it derives from belong to it, as far as they are from outside, too.
    """
    names = sorted({each.__module__ for each in kind.__mro__ if _from_outside(each.__module__)})
    if not names:
        return ""
    hasher = hashlib.sha256()
    for piece in dict.fromkeys(piece for name in names for piece in _pieces(sys.modules.get(name))):
        hasher.update(piece)
    return hasher.hexdigest()[:12]


def _from_outside(module: str) -> bool:
    package = module.partition(".")[0]
    return package == "__main__" or (package != _OURS and package not in sys.stdlib_module_names)


def _pieces(module: ModuleType | None) -> Iterator[bytes]:
    """The content of the module's files, or the code of its classes and functions if it has none."""
    file = Path(getattr(module, "__file__", None) or "")
    if not file.is_file():
        yield from () if module is None else _code_of(module)  # as in a notebook
        return
    in_package = bool(getattr(module, "__package__", ""))
    files = file.parent.rglob("*") if in_package else iter([file])
    for each in sorted(files):
        if each == file or (each.suffix in _SUFFIXES and each.is_file()):
            yield each.relative_to(file.parent).as_posix().encode() + b"\0" + each.read_bytes()


def _code_of(module: ModuleType) -> Iterator[bytes]:
    for name, value in sorted(vars(module).items()):
        if isinstance(value, (type, FunctionType)) and value.__module__ == module.__name__:
            yield f"{name} {_text_of(value)}".encode()


def _text_of(value: Any) -> str:
    """A text of code and simple values, which is the same in each process and differs if the code does."""
    if isinstance(value, (staticmethod, classmethod)):
        return _text_of(value.__func__)
    if isinstance(value, property):
        return _text_of(value.fget)
    if isinstance(value, type):
        return _text_of(tuple((name, each) for name, each in vars(value).items() if name != "__dict__"))
    if isinstance(value, FunctionType):
        return _text_of((value.__code__, value.__defaults__, value.__kwdefaults__))
    if isinstance(value, CodeType):
        return f"{value.co_code.hex()} {_text_of(value.co_consts)} {value.co_names}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_text_of, value))})"
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(map(_text_of, value)))}}}"
    return repr(value) if isinstance(value, (str, bytes, int, float, type(None))) else type(value).__name__
