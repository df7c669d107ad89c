"""Placing once, with made-up costs."""

from __future__ import annotations

from dataclasses import replace

from collage.compiler.passes.place_once import PlaceOnce
from collage.measure_db.results import Measurement
from tests.helpers.compiler.null import Made, NullBackend, each_node, regions

ENGINE = NullBackend("engine", engine=True)


def test_kernels_that_need_a_guard_are_left_out_where_it_would_trip() -> None:
    made = Made({**each_node("engine", 10.0), ("engine", (1, 2)): 1.0}, ENGINE)
    start = made.measured()
    outcomes = {
        request: replace(outcome, finite_only=len(request.nodes) > 1)
        for request, outcome in start.outcomes.items()
        if isinstance(outcome, Measurement)
    }
    start = replace(start, outcomes=outcomes)
    assert ("engine", (1, 2)) in regions(PlaceOnce()(made.context, start))
    assert len(regions(PlaceOnce(guarded=False)(made.context, start))) == 4
