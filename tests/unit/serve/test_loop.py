"""Requests on their way into the engine's loop."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from collage.errors import CollageError
from collage.serve.http import worker
from collage.serve.http.messages import EngineSetup
from collage.serve.loop import Loop
from collage.serve.options import EngineOptions
from collage.serve.request import Event, Finish, IterationRecord, RefusedError, Request
from collage.serve.runner import Slice
from collage.serve.sampling import Sampling
from tests.helpers.serve.simulation import NullRunner


def requests(count: int) -> list[Request]:
    return [Request(i, (0, i), Sampling(max_tokens=2, temperature=0)) for i in range(count)]


def test_requests_that_come_together_begin_together() -> None:
    iterations: list[IterationRecord] = []
    done = threading.Event()
    left = {0, 1, 2}

    def deliver(events: list[Event], iteration: IterationRecord | None, _: object) -> None:
        if iteration is not None:
            iterations.append(iteration)
        left.difference_update(each.id for each in events if each.finish is not None)
        if not left:
            done.set()

    loop = Loop(NullRunner(), EngineOptions(), deliver)
    try:
        loop.submit(*requests(3))
        assert done.wait(10)
    finally:
        loop.close(drain=False)
    assert [each.tokens for each in iterations] == [6, 3]


def test_all_of_them_are_refused_or_none() -> None:
    loop = Loop(NullRunner(), EngineOptions(), lambda *_: None)
    try:
        loop.most_open = 2
        with pytest.raises(RefusedError):
            loop.submit(*requests(3))
        loop.submit(*requests(2))
    finally:
        loop.close(drain=True)


def test_an_iteration_of_several_steps_tells_that_it_is_at_work() -> None:
    """Whoever watches the engine takes one that says nothing for minutes for one that hangs."""
    told: list[bool] = []
    done = threading.Event()

    def deliver(events: list[Event], iteration: IterationRecord | None, _: object) -> None:
        told.append(iteration is not None)
        if any(each.finish is not None for each in events):
            done.set()

    loop = Loop(NullRunner(max_tokens=16), EngineOptions(policy="orca"), deliver)
    loop.submit(Request(0, (1,) * 60, Sampling(max_tokens=1, temperature=0)))
    assert done.wait(10)
    loop.close(drain=True)
    assert told == [False, False, False, True]


@pytest.mark.parametrize("workers", [1, 2])
def test_closing_without_draining_begins_nothing_more(workers: int) -> None:
    """Also where several iterations are in flight at a time: those that are there end, and no other begins."""
    ended: list[Event] = []
    begun = threading.Event()

    def deliver(events: list[Event], iteration: IterationRecord | None, _: object) -> None:
        ended.extend(each for each in events if each.finish is not None)
        if iteration is not None:
            begun.set()

    runner = SlowRunner(workers=workers, block_count=512)
    loop = Loop(runner, EngineOptions(max_running=2), deliver)
    loop.submit(*(Request(i, (0, i % 3), Sampling(max_tokens=60, temperature=0)) for i in range(8)))
    assert begun.wait(10)
    before = runner.steps
    loop.close(drain=False)
    assert runner.steps <= before + workers + 1
    assert {each.id: each.finish for each in ended} == dict.fromkeys(range(8), Finish.CANCELLED)
    loop.check()


class SlowRunner(NullRunner):
    """It counts its iterations, which take a millisecond."""

    steps = 0

    def step(self, slices: Sequence[Slice]) -> NDArray[np.float32]:
        self.steps += 1
        time.sleep(0.001)
        return super().step(slices)


def test_a_request_that_comes_while_the_engine_closes_ends_too() -> None:
    """It comes after the thread has taken in what there was, and before that thread ends."""
    ended: dict[int, Finish | None] = {}

    def deliver(events: list[Event], *_: object) -> None:
        ended.update((each.id, each.finish) for each in events if each.finish is not None)

    loop = Loop(NullRunner(), EngineOptions(), deliver)
    add, late, first = loop._core.add, requests(2)[1], requests(1)[0]

    def add_while_another_comes(request: Request, now_s: float) -> None:
        add(request, now_s)
        if request is first:
            loop.submit(late)
            with loop._changed:  # as ``close`` does, which then waits for the thread
                loop._closing, loop._drains = True, False

    loop._core.add = add_while_another_comes  # type: ignore[method-assign]
    loop.submit(first)
    loop._thread.join(10)
    loop.close(drain=False)
    assert ended == {0: Finish.CANCELLED, 1: Finish.CANCELLED}


def test_what_was_loaded_is_closed_where_there_is_no_engine_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error reaches the server, which tells it the user."""
    runner = Untimed()
    monkeypatch.setattr(worker, "open_runner", lambda *_: runner)
    monkeypatch.setattr(worker, "open_tokenizer", lambda _: None)
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(CollageError, match="nobody knows its times"):
        worker._started(EngineSetup(Path("m"), EngineOptions(), Path("m")), ours)
    assert runner.closed


class Untimed(NullRunner):
    """A runner whose iterations cannot be timed."""

    closed = False

    def cost_ms(self, tokens: int) -> float:
        raise CollageError("nobody knows its times")

    def close(self) -> None:
        self.closed = True
