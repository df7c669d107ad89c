"""The team of threads that a process's native kernels share."""

from __future__ import annotations

import ctypes
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from weakref import WeakSet

from collage.errors import CollageError
from collage.kernel.target import cores
from collage.native.library import core, core_problem

_teams: dict[int, Team] = {}
_made: WeakSet[Team] = WeakSet()
_lock = threading.Lock()


class Team:
    """A team of ``threads`` threads: the one that runs a launch list, and ``threads - 1`` of its own on other cores.

    It has one run at a time, and callers get it in the order in which they came. With fewer cores than threads, or
    under a CPU quota, no thread is pinned to a core. ``handle`` is the native core's pointer to the team. It is 0 when
    the team has ended, because it was closed, or because this process is a fork of the one that made it. Raises
    CollageError when the system gives no more threads.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._core = core()
        self._allowed = os.sched_getaffinity(0)
        self.handle: int = self._core.collage_team_create(threads, *_to_pin(self._allowed))
        if not self.handle:
            raise CollageError(f"the system gives no {threads} threads: lower --threads or raise ulimit -u.")
        _made.add(self)

    def spread(self) -> None:
        """Choose the cores again if the caller may use more of them than those that were chosen from.

        A pinned thread that makes a team gives its threads the cores that it may use itself, and they keep these.
        """
        allowed = os.sched_getaffinity(0)
        if self.handle and len(allowed) > len(self._allowed):
            self._allowed = allowed
            self._core.collage_team_spread(self.handle, *_to_pin(allowed))

    def park(self) -> None:
        """Send idle threads to sleep at once, because another library's threads need the cores."""
        if self.handle:
            self._core.collage_team_park(self.handle)

    def beware(self, seconds: float) -> None:
        """Use work sharing for so long: no thread waits for a certain other one (`work_sharing.h`).

        A team begins that by itself when its threads are kept off their cores for much of the time.
        """
        if self.handle:
            self._core.collage_team_beware(self.handle, int(seconds * 1e9))

    def close(self) -> None:
        """End the team's threads. No launch list may run on the team afterwards."""
        if self.handle:
            self._core.collage_team_destroy(self.handle)
            self.handle = 0


def team_of(threads: int) -> Team:
    """The process's team of that size, which is made when needed, on the cores that the caller may use now.

    Raises CollageError without the native core.
    """
    with _lock:
        if threads not in _teams or not _teams[threads].handle:
            _teams[threads] = Team(threads)
        _teams[threads].spread()
        return _teams[threads]


def beside_team(call: Callable[[], None], threads: int) -> Callable[[], None]:
    """A call that sends the team's idle threads to sleep, and then calls a kernel with threads of its own."""
    if core_problem():
        return call
    park = team_of(threads).park

    def run() -> None:
        park()
        call()

    return run


def _to_pin(allowed: Iterable[int]) -> tuple[ctypes.Array[ctypes.c_int], int]:
    """The CPUs that a team's threads are pinned to, in order, as the native core takes them."""
    # Under a quota other processes run on the same cores, and all that pin threads would choose the same few cores.
    cpus = [] if cores().shared else one_of_each_core_first(allowed)
    return (ctypes.c_int * len(cpus))(*cpus), len(cpus)


def one_of_each_core_first(cpus: Iterable[int]) -> list[int]:
    """The CPUs with one of each core first, because hyperthreads of one core share its arithmetic units."""
    seen: Counter[str] = Counter()
    ranked = []
    for cpu in sorted(cpus):
        siblings = _siblings(cpu)
        ranked.append((seen[siblings], cpu))
        seen[siblings] += 1
    return [cpu for _, cpu in sorted(ranked)]


def _siblings(cpu: int) -> str:
    """The hyperthreads of a CPU's core, as the system writes them; the CPU alone if it writes none."""
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
    except OSError:
        return str(cpu)


def _forget() -> None:
    """Forget all teams in a forked child, which has none of their threads; they are made again when needed."""
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it
    for team in _made:
        team.handle = 0
    _teams.clear()


os.register_at_fork(after_in_child=_forget)
