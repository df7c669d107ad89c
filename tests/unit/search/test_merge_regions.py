"""Runs of neighbours on the same engine, to be offered as one region."""

from __future__ import annotations

from collage.search.candidate import Candidate
from collage.search.merge_regions import region_merges
from collage.search.placement import Placement


def placement(*parts: tuple[str, int]) -> Placement:
    candidates = [Candidate((node,), backend, 1.0) for node, (backend, _) in enumerate(parts)]
    return Placement(tuple(candidates), 1.0)


def test_runs_of_an_engine_are_joined_with_the_views_between_them() -> None:
    found = placement(("a", 0), ("a", 1), ("view", 2), ("a", 3), ("b", 4), ("view", 5), ("a", 6), ("a", 7))
    assert region_merges(found, {"a", "b"}, {"view"}) == [((0, 1, 2, 3), "a"), ((6, 7), "a")]


def test_libraries_and_single_parts_are_left_alone() -> None:
    assert region_merges(placement(("tvm", 0), ("tvm", 1), ("a", 2), ("b", 3), ("a", 4)), {"a", "b"}, {"view"}) == []


def test_a_view_at_the_end_of_a_run_stays_outside() -> None:
    assert region_merges(placement(("a", 0), ("view", 1), ("b", 2)), {"a", "b"}, {"view"}) == []
    assert region_merges(placement(("a", 0), ("a", 1), ("view", 2), ("b", 3)), {"a", "b"}, {"view"}) == [((0, 1), "a")]
