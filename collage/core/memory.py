"""The machine's memory: its size, what there is to spare, a limit for this process, and the largest cache."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

from collage.core import cgroup

_MARGIN_BYTES = 512 << 20
_LEAST_BYTES = 1 << 30
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def physical_bytes() -> int:
    """Size of this machine's memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def spare_memory() -> int | None:
    """Bytes that a worker may take so that the machine does not run out, or None where that is unknown.

    They are what is available now, also within the control groups, less 512 MiB or a tenth, whichever is more. They are
    never less than 1 GiB, which the libraries themselves need.
    """
    found = [each for each in (_available(), cgroup.spare_memory()) if each is not None]
    if not found:
        return None
    return max(_LEAST_BYTES, min(found) - max(_MARGIN_BYTES, min(found) // 10))


def memory_for_worker(limit: int | None) -> int | None:
    """Bytes that a worker which starts now may take: the limit, and without one ``spare_memory``."""
    return spare_memory() if limit is None else limit


def _available() -> int | None:
    match = re.search(r"^MemAvailable:\s+(\d+) kB", _read("/proc/meminfo"), re.MULTILINE)
    return int(match[1]) << 10 if match else None


def limit_memory(limit: int | None) -> None:
    """Let this process allocate at most ``limit`` bytes, so that a bomb gets MemoryError, not the machine.

    RLIMIT_DATA counts private writable memory; RLIMIT_AS would count address space that libraries only
    reserve. There is no effect where the system has no such limit.
    """
    try:
        import resource
    except ImportError:  # Windows has no such module
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is expected here, but its core file is of no use
    if limit is not None:
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        within = limit if most == resource.RLIM_INFINITY else min(limit, most)
        resource.setrlimit(resource.RLIMIT_DATA, (within, most))


def memory_limit() -> int | None:
    """The bytes that ``limit_memory`` has set, or None where there is no limit."""
    try:
        import resource
    except ImportError:
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return None if limit == resource.RLIM_INFINITY else limit


@cache
def last_level_cache(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Bytes of the largest cache of the first core; 32 MiB if the system does not tell."""
    sizes = (re.fullmatch(r"(\d+)([KMG]?)\n", _read(str(each))) for each in folder.glob("index*/size"))
    found = [int(each[1]) * _UNITS[each[2]] for each in sizes if each]
    return max(found, default=0) or 32 << 20


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
