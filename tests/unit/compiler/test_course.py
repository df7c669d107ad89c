"""The course of a compile: which modules count as the best so far, and what the user is told."""

from __future__ import annotations

from collage.compiler.course import Course
from collage.core.progress import Progress

ENGINE = ("engine, as written", 12e3)


def course() -> tuple[Course[str], list[Progress]]:
    shown: list[Progress] = []
    return Course(shown.append), shown


def test_what_was_not_compared_counts_only_where_it_is_faster() -> None:
    found, _ = course()
    found.improved(ENGINE[0], 12e3, ENGINE)
    found.improved("slower", 13e3, None)
    found.improved("faster", 11e3, None)
    assert [each.label for each in found.best] == [ENGINE[0], "faster"]


def test_the_best_module_and_the_engine_are_compared_by_one_run() -> None:
    found, _ = course()
    found.improved("collage", 10e3, ENGINE)
    found.improved("collage", 7e3, (ENGINE[0], 8e3))  # the machine is faster now
    assert found.best_text == "best so far 10 ms, 1.20x the best engine (engine, as written)"


def test_a_mix_is_ahead_of_the_engine_that_it_was_compared_with() -> None:
    found, _ = course()
    assert found.ahead == 1.0
    found.improved(ENGINE[0], 12e3, ENGINE)
    assert found.ahead == 1.0
    found.improved("collage", 10e3, ENGINE)
    assert found.ahead == 1.2
    found.improved("another engine", 9e3, ("another engine", 9e3))
    assert found.ahead == 1.0
