"""Budgets of errors are corrected by what placements turn out to have, with made-up placements."""

from __future__ import annotations

import math

import pytest

from collage.kernel.options import Variant
from collage.search.candidate import Candidate
from collage.search.errors import ErrorBudget, ErrorModel
from collage.search.placement import Placement
from collage.search.steering import Steering


def placed(*errors: tuple[str, float]) -> Placement:
    """Kernels of backends in bfloat16 with these errors of the outputs."""
    candidates = tuple(
        Candidate((node,), backend, 1.0, variant=Variant(precision="bf16"), error=error**2)
        for node, (backend, error) in enumerate(errors)
    )
    return Placement(candidates, float(len(candidates)))


def steering(*, predicted: bool = True) -> Steering:
    return Steering(ErrorBudget(1e-2, ErrorModel()), 1e-2, predicted)


def test_a_placement_like_the_last_one_may_have_the_error_that_is_aimed_at() -> None:
    found = steering()
    found.learn(placed(("a", 4e-3)), 2e-2)
    factor = found.budget.model.factors.of(("a", "bf16"))
    assert 3 < factor < 5  # five times as much is not quite believed of all such kernels
    assert found.budget.error / factor == pytest.approx(2e-3, rel=1e-6)


def test_more_is_allowed_where_nothing_is_left() -> None:
    found = steering()
    assert not found.step_back()  # nothing was run yet
    found.learn(placed(("a", 4e-3), ("b", 3e-3)), 4e-2)
    before = found.budget.error
    above = found.budget.model.of_plan(found.budget.model.seen[0])
    assert found.step_back()
    assert found.budget.error == pytest.approx(math.sqrt(before * above))
    for _ in range(20):
        found.step_back()
    assert found.budget.error <= above


def test_what_an_earlier_search_has_found_counts_at_the_aim_of_this_one() -> None:
    early = steering()
    early.learn(placed(("a", 4e-3)), 2e-2)
    later = Steering(early.budget, 2e-2, True)
    assert later.budget.error == pytest.approx(2 * early.budget.error)


def test_one_placement_does_not_show_any_factor() -> None:
    found = steering()
    found.learn(placed(("a", 4e-3)), math.inf)
    assert found.budget.model.seen[0].error == pytest.approx(16 * 4e-3)
