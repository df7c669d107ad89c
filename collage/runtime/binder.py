"""Joining bound kernels to calls: kernels that follow each other on the team become one launch list."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from collage.graph.dataflow import Array
from collage.kernel.device_array import on_device
from collage.kernel.device_call import DeviceCall
from collage.kernel.kernel import Call
from collage.native import Events, LaunchList, Step, Task, Team, in_sequence, note_time, sharing_scratch
from collage.native.scan import Assumed, Flag, Scanned, assumed_call, assumed_step, scan_call, scan_step
from collage.runtime.device_launches import DeviceLaunch, DeviceLaunches
from collage.runtime.device_scan import AfterScan, DeviceFlag, scan_on_device
from collage.schedule.program import Program
from collage.schedule.schedule import TEAM


class Binder:
    """Joins launches that follow each other on the team: those on all its threads, and those on streams side by side.

    Launches are added in order with ``native`` and ``call``, and ``finish`` returns the calls.
    """

    def __init__(self, program: Program, team: Team | None, lane: int, found: Flag) -> None:
        """``lane`` separates scratch memory: programs of one team and lane never run at the same time.

        Scans set ``found`` where they find NaN, infinities or huge magnitudes, or other inputs than those assumed.
        """
        self._found = found
        self._streams = program.ordered.schedule.streams
        self._team = team
        self._lane = program.threads, lane
        self._events = Events()
        self._records: dict[int, Task] = {}
        self._waits: dict[int, list[tuple[int, Task]]] = {}
        """For each launch, those on other streams that it waits for, with the tasks that wait."""
        self._apart: set[int] = set()
        """Launches that do not run on the team. Nothing waits for an event of theirs: all before them has ended then,
        and what comes after them begins later."""
        waiters: dict[int, list[int]] = {}
        for u, v in program.ordered.events:
            waiters.setdefault(u, []).append(v)
        for u, those in waiters.items():
            self._records[u], waits = self._events.make(len(those))
            for v, wait in zip(those, waits, strict=True):
                self._waits.setdefault(v, []).append((u, wait))
        self.names: list[str] = []
        """A name for each of the calls, for errors."""
        self._calls: list[Call] = []
        self._steps: list[Step] = []
        self._lists: dict[int, list[Task]] = {}
        self._on_device: list[DeviceLaunch] = []
        self._device_flag: DeviceFlag | None = None
        self._after: dict[int, tuple[int, ...]] = {
            v: tuple(u for u, w in program.ordered.events if w == v) for _, v in program.ordered.events
        }

    def native(
        self,
        number: int,
        make: Callable[[Sequence[Array], Sequence[Array]], Sequence[Step]],
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        scans: Sequence[Scanned] = (),
    ) -> None:
        """Add launch ``number``, on its stream, after the ``scans``."""
        self._flush_device()
        stream = self._streams[number]
        scan = self._scan(scans, 1 if stream != TEAM else self._lane[0])
        if stream == TEAM:
            self._meet()
            self._steps += scan
            with sharing_scratch(self._lane):
                self._steps += make(inputs, outputs)
            return
        with sharing_scratch((*self._lane, stream)):
            tasks = [task for step in [*scan, *make(inputs, outputs)] for task in step.tasks]
        records = [self._records[number]] if number in self._records else []
        waits = [wait for u, wait in self._waits.get(number, ()) if u not in self._apart]
        self._lists.setdefault(stream, []).extend([*waits, *tasks, *records])

    def assume(self, assumed: Sequence[Assumed]) -> None:
        """Compare inputs with what they have to hold, before the first launch."""
        step = None if self._team is None else assumed_step(assumed, self._found)
        if step is None:
            self.call(assumed_call(assumed, self._found), "comparison of inputs")
        else:
            self._steps.append(step)

    def call(self, call: Call, name: str, scans: Sequence[Scanned] = (), number: int | None = None) -> None:
        """Add a call that does not run on the team, after the ``scans``. Errors have its ``name``.

        It is launch ``number``, or none.
        """
        if number is not None:
            self._apart.add(number)
        self._flush_device()
        if scan := self._scan(scans, self._lane[0]):
            self._meet()
            self._steps += scan
        self._flush()
        self._add(call, name)

    def device(self, number: int, call: DeviceCall, scans: Sequence[Scanned] = ()) -> None:
        """Add launch ``number`` on a GPU, after the ``scans``, whose arrays may be on the host, too."""
        self._apart.add(number)
        if on_host := [each for each in scans if not on_device(each.array)]:
            self._flush_device()
            if scan := self._scan(on_host, self._lane[0]):
                self._meet()
                self._steps += scan
        self._flush()
        if on_gpu := [each for each in scans if on_device(each.array)]:
            if self._device_flag is None:
                self._device_flag = DeviceFlag(self._found)
            call = AfterScan([scan_on_device(each, self._device_flag) for each in on_gpu], call)
        after = self._after.get(number, ())
        self._on_device.append(DeviceLaunch(number, call, self._streams[number], after))

    def _scan(self, scans: Sequence[Scanned], threads: int) -> list[Step]:
        """The steps of a scan by the team. Where there is no team or no native scan, a call is added instead."""
        if not scans:
            return []
        step = None if self._team is None else scan_step(scans, self._found, threads)
        if step is None:
            self.call(scan_call(scans, self._found), "scan of values")
        return [] if step is None else [step]

    def finish(self) -> list[Call]:
        """All calls, in order."""
        self._flush_device()
        self._flush()
        return self._calls

    def _meet(self) -> None:
        if self._lists:
            lists = [self._lists.get(i, []) for i in range(max(self._lists) + 1)]
            self._steps.append(Step(tuple(map(in_sequence, lists))))
            self._lists = {}

    def _flush_device(self) -> None:
        if self._on_device:
            launches, self._on_device = self._on_device, []
            self._add(DeviceLaunches(launches, self._device_flag), "launch list of the GPU")

    def _flush(self) -> None:
        self._meet()
        if self._steps:
            assert self._team is not None
            self._add(LaunchList(self._team, self._steps, self._events), "launch list")
            self._steps = []

    def _add(self, call: Call, name: str) -> None:
        self._calls.append(call)
        self.names.append(name)


def noted(
    make: Callable[[Sequence[Array], Sequence[Array]], Sequence[Step]],
    before: Array | None,
    after: Array | None,
) -> Callable[[Sequence[Array], Sequence[Array]], Sequence[Step]]:
    """The maker of a kernel's steps, with steps that write the time before and after them where that is wanted."""

    def steps(inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Step]:
        first, last = ([] if at is None else [note_time(int(at.ctypes.data))] for at in (before, after))
        return [*first, *make(inputs, outputs), *last]

    return steps


def timed(call: Call, before: Array | None, after: Array | None) -> Call:
    """The call, with the time before and after it written where that is wanted, in ns of ``time.monotonic_ns``."""
    if before is None and after is None:
        return call

    def run() -> None:
        if before is not None:
            before[0] = time.monotonic_ns()
        call()
        if after is not None:
            after[0] = time.monotonic_ns()

    return run
