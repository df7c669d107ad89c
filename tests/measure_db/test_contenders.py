"""Which candidates are measured first, and which need no precise time."""

from __future__ import annotations

import math

from collage.measure_db.contenders import Contenders
from collage.measure_db.protocol import Request
from collage.measure_db.results import Measurement, Rejection, RejectionKind


def took(us: float) -> Measurement:
    return Measurement(us, 0.1, us, 21, 0.0)


def test_slower_ones_of_the_same_operators_are_hopeless() -> None:
    contenders = Contenders()
    assert contenders.hopeless_us(Request((0,), "a")) == math.inf
    contenders.note(Request((0,), "a"), took(100.0))
    contenders.note(Request((0,), "b"), took(80.0))
    contenders.note(Request((0,), "c"), took(500.0))
    assert contenders.hopeless_us(Request((0,), "d")) == 1.5 * 80.0 + 20.0
    assert contenders.hopeless_us(Request((0, 1), "d")) == math.inf


def test_those_that_were_fast_come_first() -> None:
    contenders = Contenders()
    for node, times in enumerate([(300.0, 100.0, 120.0), (90.0, 30.0, 31.0)]):
        for backend, us in zip("abc", times, strict=True):
            contenders.note(Request((node,), backend), took(us))
    contenders.note(Request((2,), "a"), Rejection(RejectionKind.CRASHED, "SIGSEGV"))
    requests = [Request((3,), backend) for backend in "abc"]
    assert [each.backend for each in contenders.in_order(requests)] == ["b", "c", "a"]
    new = Request((3,), "new")
    assert contenders.in_order([requests[0], new])[0] == new
