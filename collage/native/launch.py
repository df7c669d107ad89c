"""Launch lists, which Python describes and a team of threads runs without Python."""

from __future__ import annotations

import ctypes
import os
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from collage.errors import CollageError
from collage.graph.dataflow import Array
from collage.kernel.kernel import Call, Kernel
from collage.native.library import address_of, core
from collage.native.team import Team, team_of

_MOST_PIECES = 256
_EVENT_BYTES = 128
_EVENT_WORDS = _EVENT_BYTES // 4
_OUT_OF_RANGE = -2
"""The status of a kernel that reads an index out of range (kernels.h)."""


class TaskError(CollageError):
    """A native task returned a status other than 0."""


class Mode(IntEnum):
    """The way in which a team runs the tasks of a step.

    With SPLIT, task i runs on thread i modulo the team's size. With LEAD, the first thread runs the tasks in order, and
    the others take part in the parallel loops inside them.
    """

    SPLIT = 0
    LEAD = 1


@dataclass(frozen=True)
class Task:
    """A call of the C function at address ``function``: ``int (*)(void *a, void *b, intptr_t n, void *c)``.

    ``keep`` holds the objects that must stay alive as long as the task may run.
    """

    function: int
    a: int = 0
    b: int = 0
    n: int = 0
    c: int = 0
    keep: tuple[object, ...] = field(default=(), repr=False, compare=False)


@dataclass(frozen=True)
class Step:
    """Tasks that run at the same time, or under the lead of one thread, with a barrier at the end."""

    tasks: tuple[Task, ...]
    mode: Mode = Mode.SPLIT


def note_time(where: int) -> Step:
    """A step that writes the time, in nanoseconds of ``time.monotonic_ns``, to the int64 at that address."""
    return Step((Task(address_of(core().collage_note_time), a=where),))


def touch_interleaved(array: Array) -> Step:
    """A step after which each core owns every n-th piece of an array's cache lines; a piece has 4 KiB or more."""
    piece = max(4096, -(-array.nbytes // (_MOST_PIECES * 4096)) * 4096)
    function, start = address_of(core().collage_touch), int(array.ctypes.data)
    return Step(
        tuple(
            Task(function, a=start + at, n=min(piece, array.nbytes - at), keep=(array,))
            for at in range(0, array.nbytes, piece)
        )
    )


class Events:
    """The events of launch lists that run one after another: counters that a task records and others wait for."""

    def __init__(self) -> None:
        self._counters: list[ctypes.Array[ctypes.c_uint32]] = []
        self._process = os.getpid()

    def make(self, waiters: int) -> tuple[Task, list[Task]]:
        """The task that records a new event, and a task that waits for it, for each of ``waiters``."""
        # Each counter is on cache lines of its own: the recorder's first, then one for each waiter.
        memory = (ctypes.c_uint32 * (_EVENT_WORDS * (waiters + 2)))()
        self._counters.append(memory)
        start = -(-ctypes.addressof(memory) // _EVENT_BYTES) * _EVENT_BYTES
        await_, record = address_of(core().collage_await), address_of(core().collage_record)
        waits = [Task(await_, a=start, b=start + _EVENT_BYTES * (i + 1), keep=(memory,)) for i in range(waiters)]
        return Task(record, a=start, keep=(memory,)), waits

    @classmethod
    def of(cls, several: Sequence[Events]) -> Events:
        """The events of several launch lists that become one."""
        for each in several:
            each.renew()
        found = cls()
        found._counters = [counter for each in several for counter in each._counters]
        return found

    def renew(self) -> None:
        """Set all events to not recorded in a fork, since another thread of the parent may have changed some.

        This is done once for all lists: later ones wait for what earlier ones have recorded.
        """
        if self._process != os.getpid():
            for each in self._counters:
                ctypes.memset(each, 0, ctypes.sizeof(each))
            self._process = os.getpid()


def in_sequence(tasks: Sequence[Task]) -> Task:
    """One task that runs all of ``tasks``, one after another; events may be among them."""
    if len(tasks) == 1:
        return tasks[0]
    array = _tasks(tasks)
    function = address_of(core().collage_stream)
    return Task(function, a=ctypes.addressof(array), n=len(tasks), keep=(array, tuple(tasks)))


class NativeKernel(Kernel):
    """A kernel that a team of ``threads`` threads runs as steps of a launch list."""

    def __init__(self, threads: int) -> None:
        self.threads = threads

    @abstractmethod
    def steps(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Step]:
        """The steps of the kernel on these buffers; see ``Kernel.bind`` for the properties of the buffers."""

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        """A launch list with the steps of this kernel only."""
        return LaunchList(team_of(self.threads), self.steps(inputs, outputs))


class _Task(ctypes.Structure):
    _fields_ = (
        ("fn", ctypes.c_void_p),
        ("a", ctypes.c_void_p),
        ("b", ctypes.c_void_p),
        ("n", ctypes.c_ssize_t),
        ("c", ctypes.c_void_p),
    )


class _Step(ctypes.Structure):
    _fields_ = (("mode", ctypes.c_int32), ("count", ctypes.c_int32), ("tasks", ctypes.c_void_p))


def _tasks(tasks: Sequence[Task]) -> ctypes.Array[_Task]:
    return (_Task * len(tasks))(*(_Task(t.function, t.a, t.b, t.n, t.c) for t in tasks))


class LaunchList:
    """Steps in order, which a call of the list runs without the GIL. A call raises TaskError when a task fails.

    A list whose team has ended, because this process is a fork, is run by the process's own team of that size.
    """

    def __init__(self, team: Team, steps: Sequence[Step], events: Events | None = None) -> None:
        """Prepare the steps for ``team``; ``events`` has the events among the tasks, if there are any."""
        self._source = tuple(steps)
        self._events = events
        self._steps = (_Step * len(steps))()
        self._tasks = []
        for place, step in zip(self._steps, steps, strict=True):
            tasks = _tasks(step.tasks)
            place.mode, place.count, place.tasks = step.mode, len(step.tasks), ctypes.addressof(tasks)
            self._tasks.append(tasks)
        self._failed = ctypes.c_int64()
        self._join(team)

    def _join(self, team: Team) -> None:
        self.team = team
        self._run = core().collage_team_run
        self._arguments = (
            team.handle,
            ctypes.cast(self._steps, ctypes.c_void_p),
            ctypes.c_int64(len(self._source)),
            ctypes.byref(self._failed),
        )

    def __len__(self) -> int:
        return len(self._source)

    def followed_by(self, others: Sequence[LaunchList]) -> LaunchList:
        """One launch list of the steps of this list and of others for as many threads, in order.

        A team may have been ended since a list was made, so the one that there is now takes its place.
        """
        assert all(each.team.threads == self.team.threads for each in others)
        every = (self, *others)
        events = [each._events for each in every if each._events is not None]
        steps = [step for each in every for step in each._source]
        return LaunchList(team_of(self.team.threads), steps, Events.of(events))

    def between(self, first: Sequence[Step], last: Sequence[Step]) -> LaunchList:
        """A launch list of the same steps, after those in ``first`` and before those in ``last``."""
        return LaunchList(self.team, [*first, *self._source, *last], self._events)

    def __call__(self) -> None:
        if not self.team.handle:
            if self._events is not None:
                self._events.renew()
            self._join(team_of(self.team.threads))
        status = self._run(*self._arguments)
        if status:
            why = ": an index is out of range." if status == _OUT_OF_RANGE else f" returned status {status}."
            raise TaskError(f"native step {self._failed.value} of {len(self)}{why}")
