"""The fixpoint of placing and calibrating, with made-up times in the network."""

from __future__ import annotations

from collage.compiler.passes.calibrate import Calibrate
from collage.compiler.passes.fixpoint import Fixpoint
from collage.compiler.passes.place import Place
from tests.helpers.compiler.null import WHOLE, Made, NullBackend, each_node, regions, two_libraries

ONE, OTHER = NullBackend("one", team=True), NullBackend("other", team=True)
ENGINE = NullBackend("engine", engine=True)


def test_the_fixpoint_ends_with_the_mix_that_takes_least_in_the_network() -> None:
    made = two_libraries()
    found = Fixpoint(Place(), Calibrate())(made.context, made.measured())
    assert {backend for backend, _ in regions(found)} == {"other"}
    assert made.runs.ran == ["mix", "mix"]
    assert found.placed.placement.predicted_us == 48.0


def test_where_the_mix_fails_as_a_whole_a_backend_is_left_out() -> None:
    made = Made({("one", (0,)): 1.0, **each_node("other", 12.0)}, ONE, OTHER)
    made.runs.drops = lambda executable: any(r.backend == "one" for r in executable.program.launches)

    def place_and_forget(context, compilation):  # type: ignore[no-untyped-def]
        made.runs.dropped.clear()
        return Place()(context, compilation)

    found = Fixpoint(place_and_forget, Calibrate())(made.context, made.measured())  # type: ignore[arg-type]
    assert {backend for backend, _ in regions(found)} == {"other"}
    assert found.left_out == {"one"}


def test_where_every_mix_fails_the_engine_is_left() -> None:
    made = Made({**each_node("one", 1.0), ("engine", WHOLE): 50.0}, ONE, ENGINE)
    made.runs.drops = lambda executable: len(executable.program.launches) > 1
    found = Fixpoint(Place(), Calibrate())(made.context, made.measured())
    assert found.placed.mix is None
    assert [plan.label for plan in found.plans] == ["collage"]
