"""Early mixes in the last comparison, with made-up costs and errors."""

from __future__ import annotations

from dataclasses import replace

from collage.compiler.passes.early_mixes import EarlyMixes
from collage.compiler.passes.early_placement import LABEL
from collage.compiler.passes.select import Select
from collage.compiler.passes.within import Within
from collage.measure_db.results import Rejection, RejectionKind
from tests.compile.compiler.test_early_placement import EARLY, placed
from tests.compile.compiler.test_within import SEARCH


def test_the_early_mix_takes_part_in_the_last_comparison() -> None:
    """The last placement may be slower in the network than what was known on the way."""
    made, start = placed()
    found = EARLY(made.context, start)
    last = EarlyMixes()(made.context, Within(SEARCH)(made.context, found))
    assert [plan.label for plan in last.plans].count(LABEL) <= 1
    exact = EarlyMixes()(made.context, replace(found, plans=start.plans))
    assert exact.plans == (*start.plans, *found.early)
    assert EarlyMixes()(made.context, exact) is exact
    made.runs.whole_us = {plan.label: 50.0 for plan in start.plans} | {LABEL: 20.0}
    assert Select()(made.context, exact).result.label == LABEL


def test_an_early_mix_with_a_kernel_that_was_rejected_since_takes_no_part() -> None:
    made, start = placed()
    found = EARLY(made.context, start)
    made.measurer.rejected["lib bf16", (2,)] = Rejection(RejectionKind.CRASHED, "SIGSEGV")
    assert EarlyMixes()(made.context, found) is found
