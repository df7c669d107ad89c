"""Requests on their way into the engine's loop."""

from __future__ import annotations

import threading

import pytest

from collage.serve.loop import Loop
from collage.serve.options import EngineOptions
from collage.serve.request import Event, RefusedError, Request
from collage.serve.sampling import Sampling
from collage.serve.trace import Iteration
from tests.serve.simulation import NullRunner


def requests(count: int) -> list[Request]:
    return [Request(i, (0, i), Sampling(max_tokens=2, temperature=0)) for i in range(count)]


def test_requests_that_come_together_begin_together() -> None:
    iterations: list[Iteration] = []
    done = threading.Event()
    left = {0, 1, 2}

    def deliver(events: list[Event], iteration: Iteration | None, _: object) -> None:
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
