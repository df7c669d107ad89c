"""Which plan a compile hands over, whatever is fastest on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pytest

from collage.compiler import finish
from collage.compiler.best import Best
from collage.compiler.plan import Placed, Plan
from collage.measure_db.results import Timing


def is_mix(plan: Plan) -> bool:
    """Whether the plan is a placement."""
    return isinstance(plan, Placed)


@contextmanager
def preferred(wanted: Callable[[Plan], bool] = is_mix) -> Iterator[None]:
    """A compile in here hands over a plan that is ``wanted``, if one that is right has run."""
    ranked = finish._ranked

    def wanted_first(timings: Mapping[Plan, Timing]) -> list[Plan]:
        return sorted(ranked(timings), key=lambda plan: not wanted(plan))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finish, "_ranked", wanted_first)
        patch.setattr(Best, "finalists", lambda best, *_: best.everything())
        yield
