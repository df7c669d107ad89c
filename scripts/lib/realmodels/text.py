"""Files in the form that magika takes: bytes from the beginning and from the end, without white space around them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

PADDING = 256
"""The number in the place of a byte that a short file does not have."""
_BLOCK = 4096
_LEAST = 8


def features(content: bytes, begin: int, end: int) -> npt.NDArray[np.int32]:
    """The first bytes with padding after them, and the last ones with padding before them; shape (begin + end,)."""
    head = content[:_BLOCK].lstrip() if len(content) > _BLOCK else content.strip()
    tail = content[-_BLOCK:].rstrip() if len(content) > _BLOCK else content.strip()
    found = np.full(begin + end, PADDING, np.int32)
    first, last = head[:begin], tail[-end:]
    found[: len(first)] = np.frombuffer(first, np.uint8)
    found[begin + end - len(last) :] = np.frombuffer(last, np.uint8)
    return found


def repository_files(top: Path, most: int) -> Iterator[bytes]:
    """The content of some files of many kinds."""
    kinds: dict[str, list[Path]] = {}
    for path in sorted(top.rglob("*")):
        inside = path.relative_to(top).parts
        if path.is_file() and not path.is_symlink() and not any(part.startswith(".") for part in inside):
            kinds.setdefault(path.suffix, []).append(path)
    each = max(1, most // max(1, len(kinds)))
    chosen = [path for paths in kinds.values() for path in paths[:: max(1, len(paths) // each)][:each]]
    yield from (data for path in chosen[:most] if len(data := path.read_bytes()) >= _LEAST)
