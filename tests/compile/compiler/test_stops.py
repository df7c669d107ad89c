"""A compile that is stopped at any step hands over the best plan that is checked, with made-up costs."""

from __future__ import annotations

import errno
import os

import pytest

from collage.compiler.plan import Placed
from collage.compiler.selection import Selection
from collage.core.deadline import BudgetOverError
from collage.errors import DatabaseError, MeasurementError
from collage.measure.timing.effort import QUICK
from tests.helpers.compiler.null import Costs, Made, NullBackend, NullEngine, each_node

COSTS: Costs = {
    **each_node("lib", 10.0),
    **each_node("other", 12.0),
    ("other", (1, 2)): 15.0,
    **each_node("lib bf16", 4.0),
}
ENGINE = "engine, as written"
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tmp/inputs-1")


def made(**options: object) -> Made:
    libraries = NullBackend("lib", team=True), NullBackend("other", team=True)
    engines = {ENGINE: 70.0, f"{ENGINE}, turbo": 60.0, f"{ENGINE}, bf16": 65.0}
    return Made(
        COSTS,
        *libraries,
        NullEngine("engine", ["", "turbo"], "bf16"),
        engines=engines,
        **options,  # type: ignore[arg-type]
    )


def taken(**options: object) -> tuple[list[str], int]:
    """The steps of a compile that nobody stops, and the number of those before there is a plan."""
    each = made(**options)
    each.compiled()
    return each.step.taken, next(n for n, step in enumerate(each.step.taken) if step.startswith("switch"))


def stopped(at: int, error: BaseException, **options: object) -> tuple[Made, Selection]:
    """A compile that is stopped at the step of that number."""
    each = made(budget_s=60.0, **options)
    each.step.at, each.step.error = at, error
    try:
        return each, each.compiled()
    except KeyboardInterrupt:
        pytest.fail(f"Ctrl-C at {at} was too much: {each.step.taken[at]}")


def is_checked(each: Made, found: Selection) -> bool:
    """Whether the plan was run beside others, and a placement checked and loaded."""
    if not isinstance(found.plan, Placed):
        return found.plan.label in each.engines.turns
    return found.plan in [e.plan for e in each.runs.checked] and each.runs.loaded[-1].plan == found.plan


WHYS = [
    (BudgetOverError(), "budget"),
    (KeyboardInterrupt(), "interrupt"),
    (MeasurementError("the files cannot be written."), "failure"),
    (DatabaseError("the database is full."), "failure"),
    (FULL, "failure"),
]


@pytest.mark.parametrize(
    ("why", "ended", "options"),
    [(*each, {}) for each in WHYS] + [(*WHYS[1], {"effort": QUICK}), (*WHYS[1], {"tolerance": 0.05})],
    ids=["budget", "Ctrl-C", "worker", "database", "disk", "quick", "bf16"],
)
def test_a_stop_at_any_step_hands_over_the_best_so_far(
    why: BaseException, ended: str, options: dict[str, object]
) -> None:
    steps, first = taken(**options)
    for at in range(first, len(steps)):
        each, found = stopped(at, why, **options)
        assert is_checked(each, found), f"{at}: {steps[at]}"
        # The last race comes after the search, which has ended by itself then.
        assert each.clock.ended in (ended, "finished"), f"{at}: {steps[at]}"
        best = each.best.first
        assert best is not None and found.measured_us <= 1.02 * best.us, f"{at}: {steps[at]}"
        assert each.measurer.closed
