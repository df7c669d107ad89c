"""Joining bound kernels to calls: those that follow each other on the team become one launch list."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from collage.backends.base import Call
from collage.graph.dataflow import Array
from collage.native import Events, LaunchList, Step, Task, Team, in_turn, note_time, sharing_scratch
from collage.schedule.program import Program
from collage.schedule.schedule import TEAM


class Binder:
    """Joins what follows each other on the team: launches of all its threads, and side by side those of streams."""

    def __init__(self, program: Program, team: Team | None, lane: int) -> None:
        """Programs of one team and lane never run side by side."""
        self._streams = program.ordered.schedule.streams
        self._team = team
        self._lane = program.threads, lane
        self._events = Events()
        self._records: dict[int, Task] = {}
        self._waits: dict[int, list[Task]] = {}
        waiters: dict[int, list[int]] = {}
        for u, v in program.ordered.events:
            waiters.setdefault(u, []).append(v)
        for u, those in waiters.items():
            self._records[u], waits = self._events.make(len(those))
            for v, wait in zip(those, waits, strict=True):
                self._waits.setdefault(v, []).append(wait)
        self._calls: list[Call] = []
        self._steps: list[Step] = []
        self._lists: dict[int, list[Task]] = {}

    def native(
        self,
        number: int,
        make: Callable[[Sequence[Array], Sequence[Array]], Sequence[Step]],
        inputs: Sequence[Array],
        outputs: Sequence[Array],
    ) -> None:
        """Launch ``number``, on its stream."""
        stream = self._streams[number]
        if stream == TEAM:
            self._meet()
            with sharing_scratch(self._lane):
                self._steps += make(inputs, outputs)
            return
        with sharing_scratch((*self._lane, stream)):
            tasks = [task for step in make(inputs, outputs) for task in step.tasks]
        records = [self._records[number]] if number in self._records else []
        self._lists.setdefault(stream, []).extend([*self._waits.get(number, ()), *tasks, *records])

    def call(self, call: Call) -> None:
        """Something that the team does not run."""
        self._flush()
        self._calls.append(call)

    def finish(self) -> list[Call]:
        """All calls."""
        self._flush()
        return self._calls

    def _meet(self) -> None:
        if self._lists:
            lists = [self._lists.get(i, []) for i in range(max(self._lists) + 1)]
            self._steps.append(Step(tuple(map(in_turn, lists))))
            self._lists = {}

    def _flush(self) -> None:
        self._meet()
        if self._steps:
            assert self._team is not None
            self._calls.append(LaunchList(self._team, self._steps, self._events))
            self._steps = []


def noted(
    make: Callable[[Sequence[Array], Sequence[Array]], Sequence[Step]],
    before: Array | None,
    after: Array | None,
) -> Callable[[Sequence[Array], Sequence[Array]], Sequence[Step]]:
    """A kernel's steps, with the times before and after them written where that is asked for."""

    def steps(inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Step]:
        first, last = ([] if at is None else [note_time(int(at.ctypes.data))] for at in (before, after))
        return [*first, *make(inputs, outputs), *last]

    return steps


def timed(call: Call, before: Array | None, after: Array | None) -> Call:
    if before is None and after is None:
        return call

    def run() -> None:
        if before is not None:
            before[0] = time.monotonic_ns()
        call()
        if after is not None:
            after[0] = time.monotonic_ns()

    return run
