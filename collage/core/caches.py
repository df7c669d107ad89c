"""The caches of the first core, as the system describes them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class Cache:
    """A cache for data: its level from 1 on, its size in bytes, and whether other cores use it, too."""

    level: int
    nbytes: int
    shared: bool


UNKNOWN = (Cache(1, 32 << 10, False), Cache(2, 1 << 20, False), Cache(3, 32 << 20, True))
"""What is assumed where the system does not tell."""


def caches(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> tuple[Cache, ...]:
    """The caches from the first level on. One is shared where more CPUs use it than use the first one."""
    found: list[tuple[int, int, str]] = []
    for place in folder.glob("index*"):
        size = re.fullmatch(r"(\d+)([KMG]?)", _read(place / "size"))
        level = _read(place / "level")
        if size and int(size[1]) and level.isdigit() and _read(place / "type") in ("Data", "Unified"):
            found.append((int(level), int(size[1]) * _UNITS[size[2]], _read(place / "shared_cpu_list")))
    found.sort()
    return tuple(Cache(level, nbytes, users != found[0][2]) for level, nbytes, users in found) or UNKNOWN


@cache
def last_level_cache() -> int:
    """Bytes of the largest cache of the first core."""
    return max(each.nbytes for each in caches())


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
