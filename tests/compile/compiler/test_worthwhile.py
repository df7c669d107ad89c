"""Measuring ends where it gains little: what could gain most comes first, and what is left is not measured."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from collage.compiler.passes.measure import Measure
from collage.compiler.passes.place import Place
from collage.compiler.passes.worthwhile import Worthwhile
from collage.core.deadline import Deadline
from collage.measure.timing.effort import EXHAUSTIVE
from collage.measure.worker.protocol import CandidateRequest
from collage.search.errors import ErrorBudget
from tests.compiler.null import Costs, Made, NullBackend

COSTS = {
    **{("lib", (node,)): 40.0 - 10.0 * node for node in range(4)},
    ("other", (0,)): 25.0,
    ("other", (1,)): 90.0,
    ("other", (2,)): 90.0,
    ("other", (3,)): 1.0,
}
"""All of "lib" is placed first. Of the others the first one and the last one gain, and the last one gains less."""


def measured(
    worthwhile: Worthwhile,
    costs: Costs = COSTS,
    budget: ErrorBudget | None = None,
    recorded: Sequence[CandidateRequest] = (),
    **options: Any,
) -> list[tuple[int, ...]]:
    """The nodes of what is measured besides, in order, after "lib" was placed in float32.

    Those of ``recorded`` come after it: they were measured on a busy machine.
    """
    made = Made(costs, NullBackend("lib"), NullBackend("other"), **options)
    start = made.measured()
    known = {r for r in start.outcomes if r.backend == "lib" and not r.variant.precision}
    measurer, race, all_known = made.measurer, made.measurer.race, made.measurer.known

    def noted(requests: Sequence[CandidateRequest], *args: Any) -> Any:
        found = race(requests, *args)
        measurer.made_in_all += len(set(requests) - known)
        known.update(requests)
        return found

    def known_now(requests: Iterable[CandidateRequest]) -> Any:
        return all_known(each for each in requests if each in known)

    measurer.of_busy_times = all_known(recorded)
    measurer.known = known_now  # type: ignore[method-assign]
    placed = Place()(made.context, replace(start, outcomes=all_known(known), errors=budget))
    before = set(known)
    measurer.race, measurer.asked = noted, []  # type: ignore[method-assign]
    measurer.measure = lambda requests, progress=None: all_known(requests)  # type: ignore[method-assign, assignment]
    found = Measure(worthwhile=worthwhile)(made.context, placed)
    return list(dict.fromkeys(request.nodes for request in found.outcomes if request not in before))


def test_what_is_left_counts_as_it_was_measured_on_a_busy_machine() -> None:
    recorded = [CandidateRequest((3,), "other"), CandidateRequest((1,), "other")]
    assert measured(Worthwhile(piece=1, fruitless=1), recorded=recorded) == [(0,), (1,), (3,)]


def test_it_ends_after_pieces_that_gain_nothing() -> None:
    assert measured(Worthwhile(piece=1, fruitless=2)) == [(0,), (1,), (2,)]
    assert measured(Worthwhile(piece=1, fruitless=1)) == [(0,), (1,)]


@pytest.mark.parametrize(
    "worthwhile",
    [
        Worthwhile(piece=1, fruitless=3),
        Worthwhile(piece=1, fruitless=2, least_gain=0.0),
        Worthwhile(piece=4),
        Worthwhile(),
    ],
)
def test_all_are_measured_where_few_pieces_gain_nothing(worthwhile: Worthwhile) -> None:
    assert len(measured(worthwhile)) == 4


def test_a_gain_below_the_least_one_counts_as_none() -> None:
    assert measured(Worthwhile(piece=1, fruitless=2, least_gain=0.3)) == [(0,), (1,)]


@pytest.mark.parametrize(("of_the_time", "count"), [(0.0, 2), (0.1, 2), (1.2, 1)])
def test_a_piece_has_to_gain_what_its_share_of_the_remaining_time_is_worth(
    of_the_time: float, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes half of it. The first one gains 15 of 100 us, and the second one nothing."""
    halves = (2.0**-number for number in itertools.count())
    monkeypatch.setattr(Deadline, "remaining_s", property(lambda _: next(halves)))
    assert len(measured(Worthwhile(piece=1, fruitless=1, of_the_time=of_the_time))) == count


def test_an_exhaustive_compile_measures_all() -> None:
    assert len(measured(Worthwhile(piece=1, fruitless=1), effort=EXHAUSTIVE)) == 4


REDUCED = {**COSTS, **{("lib bf16", (node,)): us for node, us in enumerate((39.9, 29.9, 3.0, 9.9))}}
"""In bfloat16 only the third one gains."""


@pytest.mark.parametrize(
    ("budget", "count"),
    [
        (ErrorBudget(1.0), 4),  # the third one gains
        (
            ErrorBudget(1e-6),
            3,
        ),  # it may not be in bfloat16, and neither it nor the second one gains, as in float32
        (None, 4),  # nothing is known of errors, so that all are measured
    ],
)
def test_within_a_tolerance_gains_are_those_under_the_error_budget(
    budget: ErrorBudget | None, count: int
) -> None:
    found = measured(Worthwhile(piece=1, fruitless=2), REDUCED, budget, tolerance=1e-2)
    assert found == [(node,) for node in range(count)]
