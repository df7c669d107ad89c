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
    """``threads`` threads: whoever calls ``run``, and ``threads - 1`` of the team's own, pinned to other cores.

    One run at a time; callers queue. With fewer cores than threads, or under a CPU quota, nothing is
    pinned. ``handle`` is the core's
    pointer to it, and 0 when the team has ended: it was closed, or this process is a fork of the one it was made in.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        # Under a quota others run on the same cores, and all who pinned their threads would take the same few.
        cpus = [] if cores().shared else _one_of_each_core_first(os.sched_getaffinity(0))
        self._core = core()
        self.handle: int = self._core.collage_team_create(
            threads, (ctypes.c_int * len(cpus))(*cpus), len(cpus)
        )
        if not self.handle:
            raise CollageError(f"the system gives no {threads} threads: lower --threads or raise ulimit -u.")
        _made.add(self)

    def park(self) -> None:
        """Send idle threads to sleep at once: somebody else's threads need the cores."""
        if self.handle:
            self._core.collage_team_park(self.handle)

    def set_spin(self, microseconds: float) -> None:
        """How long threads without work spin before they sleep."""
        if self.handle:
            self._core.collage_team_set_spin(self.handle, int(microseconds * 1000))

    def beware(self, seconds: float) -> None:
        """Run without counting on any thread for so long: whoever has a core carries on.

        A team begins that by itself when its threads are kept off their cores for much of the time.
        """
        if self.handle:
            self._core.collage_team_beware(self.handle, int(seconds * 1e9))

    def close(self) -> None:
        """End the team's threads; nothing may run on it any more."""
        if self.handle:
            self._core.collage_team_destroy(self.handle)
            self.handle = 0


def team_of(threads: int) -> Team:
    """The process's team of that size, made when needed. Raises CollageError without the native core."""
    with _lock:
        if threads not in _teams or not _teams[threads].handle:
            _teams[threads] = Team(threads)
        return _teams[threads]


def beside_team(call: Callable[[], None], threads: int) -> Callable[[], None]:
    """The call of a kernel with threads of its own, which sends the team's idle threads to sleep first."""
    if core_problem():
        return call
    park = team_of(threads).park

    def run() -> None:
        park()
        call()

    return run


def _one_of_each_core_first(cpus: Iterable[int]) -> list[int]:
    """CPUs that are hyperthreads of one core share its arithmetic units: a small team does without them."""
    seen: Counter[str] = Counter()
    turns = []
    for cpu in sorted(cpus):
        try:
            siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
        except OSError:
            siblings = str(cpu)
        turns.append((seen[siblings], cpu))
        seen[siblings] += 1
    return [cpu for _, cpu in sorted(turns)]


def _forget() -> None:
    """In a forked child there are no threads but its own: teams are made again when needed."""
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it
    for team in _made:
        team.handle = 0
    _teams.clear()


os.register_at_fork(after_in_child=_forget)
