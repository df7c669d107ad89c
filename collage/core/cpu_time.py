"""Where the time of the cores goes: to this process, to other ones, to another machine, or to nobody."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_CORE = re.compile(r"^cpu(\d+) (.*)$", re.MULTILINE)
_IDLE, _IO_WAIT, _STOLEN = 3, 4, 7
_PRESSURE = re.compile(r"^some .*total=(\d+)", re.MULTILINE)
_RUNNING = re.compile(r"^procs_running (\d+)", re.MULTILINE)

Read = Callable[[str], str]
"""Reads a file of the system, and gives "" where there is none."""


@dataclass(frozen=True)
class CpuReading:
    """Clocks at one moment, in seconds since some moment. ``idle`` and ``stolen`` are summed over the cores.

    ``own`` is the CPU clock of this process. ``queued`` is the time in which some thread of the machine had to wait for
    a core, or None where the system does not tell. ``running`` is the number of threads that run or could run.
    """

    wall: float
    idle: float
    stolen: float
    own: float
    queued: float | None
    running: int


class Cpu:
    """The cores that this process may use. It is made before threads are pinned, since it asks the current thread."""

    def __init__(self, read: Read | None = None, cores: frozenset[int] | None = None) -> None:
        """``read`` and ``cores`` stand for the system's files, and for the cores that the current thread may use."""
        self._read = read or _text
        self._tick = os.sysconf("SC_CLK_TCK")
        self._cores = cores or _allowed()

    @property
    def count(self) -> int:
        """The number of cores."""
        return len(self._cores)

    def now(self) -> CpuReading | None:
        """The clocks now, or None where the system does not tell them."""
        text = self._read("/proc/stat")
        cores = [line for number, line in _CORE.findall(text) if int(number) in self._cores]
        if len(cores) < self.count:
            return None
        ticks = [[int(each) for each in line.split()] + [0] * 8 for line in cores]
        pressure = _PRESSURE.search(self._read("/proc/pressure/cpu"))
        running = _RUNNING.search(text)
        return CpuReading(
            wall=time.monotonic(),
            idle=sum(each[_IDLE] + each[_IO_WAIT] for each in ticks) / self._tick,
            stolen=sum(each[_STOLEN] for each in ticks) / self._tick,
            own=time.process_time(),
            queued=None if pressure is None else int(pressure[1]) / 1e6,
            running=int(running[1]) if running else 1,
        )


def taken(before: CpuReading, after: CpuReading, cores: int, threads: int) -> float:
    """The share of ``threads`` cores that others had between two readings, from 0 to 1. Idle cores count as free.

    What was neither idle nor ours was others': the wall clock of all cores, less their idle time, less our CPU clock.
    """
    wall = after.wall - before.wall
    if wall <= 0:
        return 0.0
    stolen = max(0.0, after.stolen - before.stolen)
    used = cores * wall - (after.idle - before.idle) - (after.own - before.own)
    others = max(used, stolen) / wall
    wanted = min(threads, cores)
    return min(1.0, max(0.0, others - (cores - wanted)) / wanted)


def queued(before: CpuReading, after: CpuReading) -> float:
    """The share of the time in which some thread waited for a core, from 0 to 1; 1 where the system does not tell.

    In the rest of the time nobody took a core that we wanted, except another machine on the same hardware.
    """
    wall = after.wall - before.wall
    if before.queued is None or after.queued is None or wall <= 0:
        return 1.0
    return min(1.0, max(0.0, after.queued - before.queued) / wall)


def stolen(before: CpuReading, after: CpuReading, cores: int) -> float:
    """The share of the cores' time that the hypervisor gave to other machines, from 0 to 1."""
    wall = after.wall - before.wall
    return min(1.0, max(0.0, after.stolen - before.stolen) / (cores * wall)) if wall > 0 else 0.0


def _allowed() -> frozenset[int]:
    try:
        return frozenset(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return frozenset(range(os.cpu_count() or 1))


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, ValueError):
        return ""
