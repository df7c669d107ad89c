"""Carving the kernels an engine is slow at out of its regions."""

from __future__ import annotations

from collage.search.candidate import Candidate
from collage.search.split_regions import region_splits

ORDER = tuple(range(6))
WHOLE = Candidate(ORDER, "engine", 100.0)


def test_the_rest_of_the_region_is_asked_for_on_both_sides() -> None:
    candidates = [WHOLE, Candidate((2, 3), "engine", 40.0), Candidate((2, 3), "other", 10.0)]
    assert region_splits(ORDER, candidates, WHOLE, 1.0) == [(0, 1), (4, 5)]


def test_at_the_border_there_is_one_side() -> None:
    candidates = [WHOLE, Candidate((0,), "engine", 40.0), Candidate((0,), "other", 10.0)]
    assert region_splits(ORDER, candidates, WHOLE, 1.0) == [(1, 2, 3, 4, 5)]


def test_gains_must_pay_for_the_switches_and_the_best_come_first() -> None:
    candidates = [WHOLE]
    for node, gain in ((1, 5.0), (3, 50.0), (4, 20.0)):
        candidates += [Candidate((node,), "engine", 60.0), Candidate((node,), "other", 60.0 - gain)]
    assert region_splits(ORDER, candidates, WHOLE, 4.0, most=1) == [(0, 1, 2), (4, 5)]
    assert len(region_splits(ORDER, candidates, WHOLE, 4.0, most=9)) == 4
    assert region_splits(ORDER, candidates, WHOLE, 30.0) == []


def test_sets_that_are_no_interval_are_left_alone() -> None:
    scattered = [WHOLE, Candidate((0, 2), "engine", 40.0), Candidate((0, 2), "other", 1.0)]
    assert region_splits(ORDER, scattered, WHOLE, 1.0) == []
    assert region_splits((0, 2, 4, 1, 3, 5), scattered, Candidate((0, 1), "engine", 100.0), 1.0) == []
