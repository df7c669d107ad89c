"""Which candidates of a region are measured first, what they have to beat, and which are not measured at all."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from collage.measure.contenders import Charges, Contenders, Field

from collage.kernel.options import Variant
from collage.measure.worker.protocol import CandidateRequest
from collage.measure_db.busy import BUSY_VARIABLE
from collage.measure_db.results import Measurement, Outcome, Rejection, RejectionKind, Slower


def took(us: float) -> Measurement:
    return Measurement(us, 0.1, us, 21, 0.0)


def noted(contenders: Contenders, *found: tuple[int, str, Outcome]) -> Contenders:
    for node, backend, outcome in found:
        contenders.note(CandidateRequest((node,), backend), outcome)
    return contenders


def test_the_fastest_of_the_same_operators_is_to_beat() -> None:
    contenders = Contenders()
    assert contenders.rival_us(CandidateRequest((0,), "a")) == math.inf
    noted(contenders, (0, "a", took(100.0)), (0, "b", took(80.0)), (0, "c", took(500.0)))
    noted(contenders, (0, "e", Slower(10.0, 5.0, 12)))  # it was not measured to the end
    assert contenders.rival_us(CandidateRequest((0,), "d")) == 80.0
    assert contenders.rival_us(CandidateRequest((0, 1), "d")) == math.inf


def test_engines_have_to_make_up_for_the_cost_of_a_call() -> None:
    contenders = Contenders(Field(Charges(frozenset(["e"]), switch_us=20.0), rivals_us={(1,): 50.0}))
    noted(contenders, (0, "e", took(30.0)))
    assert contenders.rival_us(CandidateRequest((0,), "lib")) == 50.0
    noted(contenders, (0, "lib", took(10.0)))
    assert contenders.rival_us(CandidateRequest((0,), "e")) == -10.0
    assert contenders.hopeless(CandidateRequest((0,), "e")) == Slower(0.0, 0.0, 0)
    assert contenders.rival_us(CandidateRequest((1,), "e")) == 30.0
    assert not contenders.hopeless(CandidateRequest((1,), "e"))


def test_those_that_were_fast_come_first() -> None:
    contenders = Contenders(Field(Charges(frozenset(["engine"]))))
    for node, times in enumerate([(300.0, 100.0, 120.0), (90.0, 30.0, 31.0)]):
        for backend, us in zip("abc", times, strict=True):
            noted(contenders, (node, backend, took(us)))
    noted(contenders, (2, "a", Rejection(RejectionKind.CRASHED, "SIGSEGV")))
    requests = [CandidateRequest((3,), backend) for backend in "abc"]
    assert [each.backend for each in contenders.in_order(requests)] == ["b", "c", "a"]
    unknown = [CandidateRequest((3,), "engine"), CandidateRequest((3,), "library")]
    assert [each.backend for each in contenders.in_order([requests[0], *unknown])] == [
        "library",
        "engine",
        "a",
    ]


def test_what_lost_by_far_on_many_regions_is_not_measured_on_more() -> None:
    contenders = Contenders(Field(operators=lambda nodes: "conv"))
    for node in range(5):
        assert not contenders.hopeless(CandidateRequest((9,), "slow"))
        noted(contenders, (node, "fast", took(10.0)), (node, "slow", Slower(20.0, 10.0, 3)))
        contenders.in_order([])
    assert not contenders.hopeless(CandidateRequest((9,), "slow"))  # nothing else of that region is known
    noted(contenders, (9, "fast", took(10.0)))
    assert contenders.hopeless(CandidateRequest((9,), "slow")) == Slower(20.0, 10.0, 0)
    # What was only predicted tells nothing new.
    noted(contenders, (7, "slow", Slower(10.0, 10.0, 0)), (7, "fast", took(10.0)))
    contenders.in_order([])
    assert contenders.hopeless(CandidateRequest((9,), "slow")) == Slower(20.0, 10.0, 0)
    noted(contenders, (6, "slow", took(9.0)), (6, "fast", took(10.0)))
    contenders.in_order([])
    assert not contenders.hopeless(CandidateRequest((9,), "slow"))  # it has won once


def test_what_is_less_exact_is_no_rival_of_what_is_exact() -> None:
    contenders = Contenders(Field(operators=lambda nodes: "conv", rivals_us={(9,): 30.0}))
    exact, reduced = (CandidateRequest((9,), "lib", Variant(precision=each)) for each in ("", "bf16"))
    contenders.note(reduced, took(10.0))
    assert contenders.rival_us(exact) == 30.0
    assert contenders.rival_us(reduced) == 10.0
    assert contenders.rival_us(CandidateRequest((9,), "lib", Variant(precision="other"))) == 30.0
    # Kernels in 8 bits have larger errors than those in bfloat16, which they have to beat, too, but not be beaten by.
    assert contenders.rival_us(CandidateRequest((9,), "lib", Variant(precision="int8"))) == 10.0
    contenders.note(CandidateRequest((9,), "lib", Variant(precision="int8")), took(5.0))
    assert contenders.rival_us(reduced) == 10.0
    contenders.note(exact, took(8.0))
    assert contenders.rival_us(exact) == contenders.rival_us(reduced) == 8.0


def test_what_is_exact_is_not_left_out_for_what_is_less_exact() -> None:
    contenders = Contenders(Field(operators=lambda nodes: "conv"))
    exact, reduced = Variant(), Variant(precision="bf16")
    for node in range(6):
        contenders.note(CandidateRequest((node,), "lib", exact), took(20.0))
        contenders.note(CandidateRequest((node,), "lib", reduced), took(10.0))
        contenders.note(CandidateRequest((node,), "other", reduced), took(30.0))
        contenders.in_order([])
    noted(contenders, (9, "lib", took(15.0)))
    contenders.note(CandidateRequest((9,), "lib", reduced), took(7.0))
    assert not contenders.hopeless(CandidateRequest((9,), "lib", exact))
    assert contenders.hopeless(CandidateRequest((9,), "other", reduced))


def test_what_a_busy_machine_tells_is_marked_and_not_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(BUSY_VARIABLE)
    contenders = Contenders(Field(Charges(frozenset(["engine"]), switch_us=60.0), lambda nodes: "conv"))
    for node, busy in ((0, 0.4), (9, None)):
        noted(contenders, (node, "lib", replace(took(50.0), busy=busy)))
        lost = contenders.hopeless(CandidateRequest((node,), "engine"))
        assert lost is not None and lost.busy == busy
    for node in range(1, 7):
        noted(contenders, (node, "lib", took(10.0)), (node, "other", replace(took(90.0), busy=0.4)))
        contenders.in_order([])
    assert contenders.about.losses.least("conv", ("other", "")) == 1.0
