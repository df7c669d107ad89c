"""Having the machine while something is timed that needs all of it, and noting how busy others keep it meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import ContextVar

from collage.core.background import standing_still
from collage.core.cpu_time import Cpu, CpuReading, queued, stolen, taken
from collage.core.machine_lock import Waiting, machine_lock

_LEAST_S = 0.25
"""The clocks of the cores tick each 10 ms. Shares of a shorter time would be mostly chance, so that what was before
counts, too."""
_PROBE_S = 0.3


class Watch:
    """What is known of a piece of work that has ended."""

    busy: float | None = None
    """The share of the cores that others had, as in ``Timing``."""


class Machine:
    """How busy this machine is, for a process that measures on it."""

    def __init__(self, threads: int | None = None, waiting: Waiting = nullcontext, cpu: Cpu | None = None) -> None:
        """``threads`` is the number that measurements need, by default one for each core.

        ``waiting`` is entered while others measure.
        """
        self._cpu = cpu or Cpu()
        self._threads = threads or self._cpu.count
        self._waiting = waiting
        self._last = self._cpu.now()

    @contextmanager
    def quiet(self, *, alone: bool = True) -> Iterator[Watch]:
        """Watch a piece of work, which has the machine to itself if it is ``alone``."""
        watch = Watch()
        with ExitStack() as stack:
            if alone:
                stack.enter_context(machine_lock(self._waiting))
                stack.enter_context(standing_still())
            begin = self._cpu.now()
            yield watch
            watch.busy = self._taken(begin, self._cpu.now())

    def probe(self, seconds: float = _PROBE_S) -> float:
        """How busy the machine is while this process does nothing for some time."""
        begin = self._cpu.now()
        time.sleep(seconds)
        end = self._cpu.now()
        return taken(begin, end, self._cpu.count, self._threads) if begin and end else 0.0

    def _taken(self, begin: CpuReading | None, end: CpuReading | None) -> float | None:
        """The share that others had. What they had before the work began counts only as far as threads waited in it."""
        if begin is None or end is None:
            return None
        last, self._last = self._last, end
        since = begin if last is None or end.wall - begin.wall >= _LEAST_S else last
        if end.wall - since.wall < _LEAST_S:
            self._last = last
        found = taken(since, end, self._cpu.count, self._threads)
        return max(min(found, queued(begin, end)), stolen(since, end, self._cpu.count))


_machine: ContextVar[Machine] = ContextVar("machine")


def use_machine(machine: Machine) -> None:
    """Make it the one that ``quiet_machine`` watches in this thread."""
    _machine.set(machine)


@contextmanager
def quiet_machine(*, alone: bool = True) -> Iterator[Watch]:
    """Watch a piece of work; see ``Machine.quiet``. A worker has told what it knows of the machine."""
    machine = _machine.get(None)
    if machine is None:
        machine = Machine()
        use_machine(machine)
    with machine.quiet(alone=alone) as watch:
        yield watch
