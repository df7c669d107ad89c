"""The CPU time and memory that Linux's control groups leave to this process; other systems have no limits.

A limit holds for the group that it is set for and for all groups below it, so the smallest limit on the way up counts.
The functions take the root folder, below which they read ``/proc`` and ``/sys``. A file that is missing or makes no
sense sets no limit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_DEFAULT_PERIOD = 100_000
_NUMBER = re.compile(r"[0-9]{1,19}")  # microseconds or bytes, in 64 bits


@dataclass(frozen=True)
class CpuQuota:
    """CPU time that a group may take, in cores: 1.5 cores are 150 ms in each 100 ms. ``source`` names the file."""

    cores: float
    source: str

    def __str__(self) -> str:
        return f"CPU quota of {self.cores:g} in {self.source}"


def cpu_quota(root: Path = Path("/")) -> CpuQuota | None:
    """The smallest quota of this process's groups and of all groups above them, or None where none is set."""
    found = [
        CpuQuota(cores, _shown(file, root))
        for version, folder in _groups(root, "cpu")
        for file, cores in (_quota_v2(folder) if version == 2 else _quota_v1(folder))
    ]
    return min(found, key=lambda quota: quota.cores, default=None)


def spare_memory(root: Path = Path("/")) -> int | None:
    """Bytes that this process's groups may still take, or None without a limit.

    Cached pages of files, which the system can drop, do not count as taken.
    """
    found = [
        left
        for version, folder in _groups(root, "memory")
        if (left := (_memory_v2(folder) if version == 2 else _memory_v1(folder))) is not None
    ]
    return min(found, default=None)


def _quota_v2(folder: Path) -> Iterator[tuple[Path, float]]:
    file = folder / "cpu.max"
    most, _, period = _read(file).strip().partition(" ")
    yield from _quota(file, most, period or str(_DEFAULT_PERIOD))


def _quota_v1(folder: Path) -> Iterator[tuple[Path, float]]:
    file = folder / "cpu.cfs_quota_us"
    yield from _quota(file, _read(file).strip(), _read(folder / "cpu.cfs_period_us").strip())


def _quota(file: Path, most: str, period: str) -> Iterator[tuple[Path, float]]:
    """The quota of ``file``; none where it is "max", -1, or no number."""
    if _NUMBER.fullmatch(most) and _NUMBER.fullmatch(period) and int(most) > 0 and int(period) > 0:
        yield file, int(most) / int(period)


def _memory_v2(folder: Path) -> int | None:
    return _left(folder, "memory.max", "memory.current", "inactive_file")


def _memory_v1(folder: Path) -> int | None:
    return _left(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _left(folder: Path, most: str, used: str, cached: str) -> int | None:
    limit, usage = _read(folder / most).strip(), _read(folder / used).strip()
    if not _NUMBER.fullmatch(limit) or not _NUMBER.fullmatch(usage):
        return None
    files = re.search(rf"^{cached} ({_NUMBER.pattern})$", _read(folder / "memory.stat"), re.MULTILINE)
    taken = int(usage) - min(int(usage), int(files[1]) if files else 0)
    return max(0, int(limit) - taken)


def _groups(root: Path, controller: str) -> Iterator[tuple[int, Path]]:
    """The version and folder of each group that this process is in for ``controller``, and of all groups above it."""
    mounts = list(_mounts(root))
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        version = 2 if number == "0" and not controllers else 1
        if version == 1 and controller not in controllers.split(","):
            continue
        for kind, options, top, place in mounts:
            if kind == ("cgroup2" if version == 2 else "cgroup") and (version == 2 or controller in options):
                folder = root / place.lstrip("/")
                below = _below(path, top)
                yield version, folder / below
                yield from ((version, folder / each) for each in below.parents)


def _below(path: str, top: str) -> PurePosixPath:
    """The path of a group below a mount that shows the group ``top``; the mount itself where it shows another one.

    A container sees such a mount when its groups are named as on the host, or when it was moved out of its namespace.
    """
    try:
        found = PurePosixPath(path).relative_to(top)
    except ValueError:
        return PurePosixPath()
    return PurePosixPath() if ".." in found.parts else found


def _mounts(root: Path) -> Iterator[tuple[str, frozenset[str], str, str]]:
    """Each mounted hierarchy: its kind and options, the group that it shows, and the folder where it is mounted."""
    for line in _read(root / "proc/self/mountinfo").splitlines():
        fields = line.split(" ")
        if "-" not in fields[6:]:
            continue
        kind, _, *options = (*fields[fields.index("-", 6) + 1 :], "", "")
        if kind in ("cgroup", "cgroup2"):
            yield kind, frozenset(",".join(options).split(",")), _unescaped(fields[3]), _unescaped(fields[4])


def _unescaped(text: str) -> str:
    """Decode ``mountinfo``, which writes spaces and the like as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _shown(file: Path, root: Path) -> str:
    return f"/{file.relative_to(root)}"


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except (OSError, ValueError):  # a name with a null byte is a ValueError
        return ""
