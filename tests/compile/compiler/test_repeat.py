"""Passes that are made of passes: repeated without a kernel that failed, and a second way where the first fails."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from collage.compiler.passes.calibrate import Calibrate
from collage.compiler.passes.fixpoint import Fixpoint
from collage.compiler.passes.place import Place
from collage.compiler.passes.place_once import PlaceOnce
from collage.compiler.passes.repeat import Either, Repeat
from collage.compiler.passes.select import Select
from collage.compiler.plan import StreamPlan
from collage.compiler.proposal import NOT_CALIBRATED
from collage.compiler.state import Compilation, Context
from collage.errors import NoPlacementError
from collage.schedule.schedule import Schedule
from tests.compiler.null import Made, NullBackend, each_node, regions

ONE, OTHER = NullBackend("one", team=True), NullBackend("other", team=True)


@dataclass(frozen=True)
class Nothing:
    """A pass that finds no placement."""

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        raise NoPlacementError("nothing")


def test_the_search_is_repeated_without_a_kernel_that_failed() -> None:
    made = Made({**each_node("one", 1.0), **each_node("other", 2.0)}, ONE, OTHER)
    made.runs.worn_out = ("one", (2,))
    search = Repeat((Fixpoint(Place(), Calibrate()), Select()))
    start = made.measured()
    found = search(made.context, start)
    assert regions(found) == [("one", (0,)), ("one", (1,)), ("other", (2,)), ("one", (3,))]
    assert found.result.label == "collage"
    assert start.proposal is None


def test_attempts_come_to_an_end() -> None:
    made = Made({**each_node("one", 1.0), **each_node("other", 2.0)}, ONE, OTHER)
    made.runs.worn_out = ("one", (2,))
    search = Repeat((Fixpoint(Place(), Calibrate()), Select()), attempts=1)
    with pytest.raises(NoPlacementError, match="too many kernels fail in the network"):
        search(made.context, made.measured())


def test_a_plan_of_an_earlier_pass_does_not_come_back_with_a_rejected_kernel() -> None:
    made = Made({**each_node("one", 1.0), **each_node("other", 2.0)}, ONE, OTHER)
    start = Fixpoint(Place(), Calibrate())(made.context, made.measured())
    streams = StreamPlan(Schedule.sequential(4), (None,) * 4, "list")
    earlier = replace(start.plans[0], label="concurrent", streams=streams)
    made.runs.worn_out = ("one", (2,))
    search = Repeat((Fixpoint(Place(), Calibrate()), Select()))
    found = search(made.context, replace(start, plans=(earlier,), calibration=NOT_CALIBRATED))
    assert regions(found) == [("one", (0,)), ("one", (1,)), ("other", (2,)), ("one", (3,))]
    assert "concurrent" not in [plan.label for plan in found.plans]


def test_the_second_way_starts_where_the_first_did() -> None:
    made = Made(each_node("one", 1.0), ONE)
    start = replace(made.measured(), epsilon_us=0.25)
    found = Either(Repeat((Place(), Nothing())), PlaceOnce())(made.context, start)
    assert found.placed.mix is None
    assert found.epsilon_us == 0.25
    with pytest.raises(NoPlacementError):
        Either(Nothing(), Nothing())(made.context, start)
