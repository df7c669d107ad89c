"""Factors of predicted errors, from the errors of plans whose kernels are off by known factors."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collage.search.error_corrections import Kind, Seen, factors_by

A, B, C = ("a", "bf16"), ("b", "bf16"), ("b", "int8")
TRUE = {A: 1.0, B: 2.0, C: 8.0}


def run(added: dict[Kind, float]) -> Seen:
    """A plan whose kinds of kernels are predicted to add so much, with the error that it really has."""
    return Seen(added, math.sqrt(math.fsum(TRUE[kind] ** 2 * each for kind, each in added.items())))


def test_a_plan_of_one_kind_tells_of_that_kind_and_a_little_of_others() -> None:
    found = factors_by((run({C: 1e-6}),))
    assert 6 < found.of(C) < 8
    assert 1 < found.of(A) < 3


def test_plans_of_other_mixes_tell_whose_errors_they_are() -> None:
    plans = [run({A: 1e-6, C: 1e-6}), run({A: 1e-6, B: 1e-6}), run({A: 2e-6}), run({B: 2e-6, C: 1e-7})]
    found = factors_by(plans)
    for kind, factor in TRUE.items():
        assert found.of(kind) == pytest.approx(factor, rel=0.35)


def test_what_was_found_earlier_is_not_forgotten() -> None:
    """A factor for all kinds would be multiplied once more by each kind that is met."""
    plans = [run({C: 1e-6}), run({B: 1e-6})]
    assert factors_by(plans).of(C) == pytest.approx(TRUE[C], rel=0.3)
    assert factors_by(plans).of(A) < TRUE[C] / 2


@given(st.lists(st.dictionaries(st.sampled_from([A, B, C]), st.floats(1e-12, 1.0), min_size=1), min_size=1, max_size=8))
def test_each_plan_is_explained(plans: list[dict[Kind, float]]) -> None:
    seen = [run(each) for each in plans]
    found = factors_by(seen)
    for each in seen:
        predicted = math.sqrt(math.fsum(found.of(kind) ** 2 * added for kind, added in each.added.items()))
        assert 0.4 < predicted / each.error < 2.5
    assert all(0.3 < found.of(kind) < 25 for kind in TRUE)
