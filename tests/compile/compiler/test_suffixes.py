"""A model whose shapes depend on data from some node on: the prefix is placed, and an engine runs the rest."""

from __future__ import annotations

from typing import Any

import pytest

from collage.compiler.plan import Placed, Whole
from collage.compiler.propose.engines import engines
from collage.compiler.propose.mixes import first_mix
from collage.errors import NoPlacementError
from collage.measure_db.database import Database
from tests.helpers.compiler.null import WRONG, Made, NullBackend, NullEngine, chain, each_node

FAST, SLOW = "fast, as written", "slow, as written"


def made(whole_us: float = 200.0, **options: Any) -> Made:
    """Two engines run the whole model in 200 us, or the suffix in 50 and 60, after a prefix that takes 40."""
    both = NullEngine("slow"), NullEngine("fast")
    us = {SLOW: whole_us, FAST: whole_us}
    found = Made(each_node("lib", 10.0), NullBackend("lib", team=True), *both, engines=us, suffix=chain(), **options)
    found.engines.suffix_us = {"slow": 60.0, "fast": 50.0}
    return found


def test_the_fastest_engine_runs_the_suffix() -> None:
    each = made().run(engines, first_mix)
    assert [plan.suffix for plan in each.placed] == ["fast", "slow"]
    assert each.bench.known.suffix == "fast"
    found = each.compiled()
    assert isinstance(found.plan, Placed) and found.plan.suffix == "fast"
    assert found.measured_us == 90.0 and found.predicted_us == 90.0
    suffix = found.parts.program.suffix
    assert suffix is not None and suffix.region.backend == "fast"
    assert [region.backend for region in found.parts.program.launches] == ["lib"] * 4


def test_an_engine_that_is_faster_on_the_whole_model_is_handed_over() -> None:
    assert made(whole_us=80.0).compiled().plan in (Whole("fast"), Whole("slow"))


def test_other_numbers_than_the_references_are_refused() -> None:
    each = made()
    each.engines.suffix_makes = {"fast": 1.0}
    found = each.compiled()
    assert isinstance(found.plan, Placed) and found.plan.suffix == "slow"
    each = made()
    each.engines.suffix_makes = {"fast": 1.0, "slow": 1.0}
    assert isinstance(each.compiled().plan, Whole)
    each = made()
    each.runs.finding_of = lambda _: WRONG
    assert isinstance(each.compiled().plan, Whole)


def test_with_strict_no_suffix_is_handed_over() -> None:
    with pytest.raises(NoPlacementError):
        made(strict=True).compiled()


def test_a_second_compile_measures_nothing() -> None:
    with Database(":memory:") as database:
        first = made(database=database)
        before = first.compiled()
        second = made(database=database)
        second.measurer.asked = first.measurer.asked
        after = second.compiled()
    assert isinstance(after.plan, Placed) and after.plan.suffix == "fast"
    assert after.timings == before.timings
    assert not [s for s in second.step.taken if s.split()[0] in ("trial", "measure", "turn")]
