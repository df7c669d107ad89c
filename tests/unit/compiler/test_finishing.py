"""What is kept of a budget for the end of a compile."""

from __future__ import annotations

import pytest

from collage.compiler.finishing import kept_s, least_s


@pytest.mark.parametrize(
    ("budget_s", "comparing_s", "kept"),
    [(40.0, 0.0, 10.0), (200.0, 0.0, 20.0), (200.0, 5.0, 20.0), (200.0, 12.0, 36.0), (200.0, 90.0, 50.0)],
)
def test_more_is_kept_where_comparing_takes_long(budget_s: float, comparing_s: float, kept: float) -> None:
    assert kept_s(budget_s, comparing_s) == kept


@pytest.mark.parametrize(("comparing_s", "least"), [(None, 10.0), (2.0, 10.0), (17.0, 17.0), (50.0, 30.0)])
def test_an_early_engine_has_as_long_as_comparing_took(comparing_s: float | None, least: float) -> None:
    assert least_s(comparing_s) == least
