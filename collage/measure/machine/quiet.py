"""Having the machine while something is timed, and watching how busy it is meanwhile."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import replace

from collage.core.background import standing_still
from collage.core.cpu_time import Cpu, CpuReading, queued, stolen, taken
from collage.core.machine_lock import Waiting, machine_lock
from collage.measure.machine.calibration import calibration_us, slowed
from collage.measure.timing.calls import summary, undisturbed
from collage.measure_db.busy import is_busy, patience
from collage.measure_db.results import Timing

_LEAST_S = 0.25
"""The clocks of the cores tick each 10 ms. Shares of a shorter time would be mostly chance, so that what was before
counts, too."""
_KEPT = 256
_CALIBRATED_S = 0.02
"""A calibration holds for so long: pieces of a few ms that follow each other share one."""
_PROBE_S = 0.3
_LONGEST_CALM_S, _SHORTEST_CALM_S = 0.1, 0.005
"""How long a slow core is waited for. On a core that is shared with another machine, most slow spells take 3 to 10 ms,
and a spell of some tenths of a second is waited for in vain, as are those of a machine that stays slow."""
_LOOK_S = 0.002


class Watch:
    """What is known of a piece of work: ``patience`` from its beginning on, and ``busy`` when it has ended."""

    def __init__(self, patience: float) -> None:
        self.patience = patience
        """How many times as long samples should be taken as on a quiet machine."""
        self.busy: float | None = None
        """How busy the machine was; see ``collage.measure_db.busy``."""

    @property
    def disturbed(self) -> bool:
        """Whether the machine is busy, or was when the work had ended."""
        return self.patience > 1.0 if self.busy is None else is_busy(self.busy)


class Machine:
    """A process that measures knows what this machine was like lately, and its best calibration so far."""

    def __init__(
        self,
        threads: int | None = None,
        best_us: float | None = None,
        waiting: Waiting = nullcontext,
        cpu: Cpu | None = None,
    ) -> None:
        """``threads`` is the number that measurements need, by default one for each core.

        ``best_us`` is the best calibration that is known, and ``waiting`` is entered while others measure.
        """
        self._cpu = cpu or Cpu()
        self._threads = threads or self._cpu.count
        self._best_us = float("inf") if best_us is None else best_us
        self._waiting = waiting
        self._readings: deque[CpuReading] = deque(maxlen=_KEPT)
        self._calibrated = (-1.0, 0.0)
        self._calm_s = _LONGEST_CALM_S
        self._note()

    @contextmanager
    def quiet(self) -> Iterator[Watch]:
        """Have the machine for a short piece of work, such as the samples of one candidate.

        Where a core is slow just now, it begins a moment later.
        """
        with machine_lock(self._waiting), standing_still():
            before = self._calm()
            begin = self._note()
            watch = Watch(patience(max(self._lately(begin), before)))
            yield watch
            end, after = self._note(), self._slowed()
            watch.busy = max(self._taken(begin, end), min(before, after))

    @contextmanager
    def working(self) -> Iterator[None]:
        """Have the machine for an answer as a whole, with what is built and checked, where two need the same cores.

        Else what one compile builds would disturb what another one times. Where there are cores for two teams, one
        builds while the other times.
        """
        with machine_lock(self._waiting) if self._cpu.count < 2 * self._threads else nullcontext():
            yield

    def probe(self, seconds: float = _PROBE_S) -> float:
        """How busy the machine is while this process does nothing for some time."""
        begin = self._note()
        time.sleep(seconds)
        end = self._note()
        others = taken(begin, end, self._cpu.count, self._threads) if begin and end else 0.0
        return max(others, self._slowed())

    def _note(self) -> CpuReading | None:
        now = self._cpu.now()
        if now is not None:
            self._readings.append(now)
        return now

    def _calm(self) -> float:
        """The share by which the machine is slower than at its best, after a short wait if it is slow.

        What was waited for in vain is waited for half as long the next time.
        """
        share, end = self._slowed(), time.monotonic() + self._calm_s
        if not is_busy(share):
            return share
        while is_busy(share) and time.monotonic() < end:
            time.sleep(_LOOK_S)
            self._calibrated = -1.0, 0.0
            share = self._slowed()
        factor = 0.5 if is_busy(share) else 2.0
        self._calm_s = min(_LONGEST_CALM_S, max(_SHORTEST_CALM_S, factor * self._calm_s))
        return share

    def _slowed(self) -> float:
        at, share = self._calibrated
        if time.monotonic() - at > _CALIBRATED_S:
            now_us = calibration_us()
            self._best_us = min(self._best_us, now_us)
            share = slowed(now_us, self._best_us)
            self._calibrated = time.monotonic(), share
        return share

    def _before(self, end: CpuReading) -> CpuReading:
        """The latest reading that is a quarter of a second before the end, or the first one."""
        long_ago = [each for each in self._readings if each.wall <= end.wall - _LEAST_S]
        return long_ago[-1] if long_ago else self._readings[0]

    def _lately(self, now: CpuReading | None) -> float:
        """The share that others had lately, but not more than the threads that want to run now would take."""
        if now is None:
            return 0.0
        found = taken(self._before(now), now, self._cpu.count, self._threads)
        return min(found, max(0, now.running - 1) / self._threads)

    def _taken(self, begin: CpuReading | None, end: CpuReading | None) -> float:
        """The share that others had. What they had before the work began counts only as far as threads waited in it."""
        if begin is None or end is None:
            return 0.0
        since = begin if end.wall - begin.wall >= _LEAST_S else self._before(end)
        found = taken(since, end, self._cpu.count, self._threads)
        return max(min(found, queued(begin, end)), stolen(since, end, self._cpu.count))


_machine: ContextVar[Machine] = ContextVar("machine")


def use_machine(machine: Machine) -> None:
    """Make it the one that ``quiet_machine`` watches in this thread."""
    _machine.set(machine)


@contextmanager
def quiet_machine() -> Iterator[Watch]:
    """Have the machine for a short piece of work; see ``Machine.quiet``. A worker has told what it knows of it."""
    machine = _machine.get(None)
    if machine is None:
        machine = Machine()
        use_machine(machine)
    with machine.quiet() as watch:
        yield watch


def timed_quietly(work: Callable[[float], list[float]]) -> Timing:
    """The timing of the samples that the work takes, in nanoseconds.

    The work is told for how many times as long to take samples. On a busy machine the ``undisturbed`` ones count.
    """
    with quiet_machine() as watch:
        samples = work(watch.patience)
    found = summary(undisturbed(samples) if watch.disturbed else samples)
    return replace(found, repeats=len(samples), busy=watch.busy)


class _TakenError(Exception):
    """Another process has the machine."""


@contextmanager
def _not_waiting() -> Iterator[None]:
    raise _TakenError
    yield


def busy_now(best_us: float | None) -> float:
    """How busy the machine is without our own work, which takes 0.3 s to find out; 1 where others measure just now."""
    machine = Machine(best_us=best_us)
    try:
        with machine_lock(_not_waiting), standing_still():
            return machine.probe()
    except _TakenError:
        return 1.0


def quiet_now(best_us: float | None) -> bool:
    """Whether the machine is quiet, which takes 0.3 s to find out."""
    return not is_busy(Machine(best_us=best_us).probe())
