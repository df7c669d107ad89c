"""Placing once, with made-up costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collage.compiler.passes.place_once import PlaceOnce
from collage.errors import NoPlacementError
from collage.measure_db.results import Measurement
from tests.compiler.null import Made, NullBackend, each_node, regions

ENGINE = NullBackend("engine", engine=True)


def test_it_measures_nothing() -> None:
    made = Made({**each_node("engine", 10.0), ("engine", (1, 2)): 1.0}, ENGINE)
    start = made.measured()
    known = [offer for offer in start.offers if len(offer.request.nodes) == 1]
    start = replace(start, offers=tuple(known), outcomes=made.measurer.known(o.request for o in known))
    found = PlaceOnce()(made.context, start)
    assert len(regions(found)) == 4
    assert found.placed.mix is None
    assert not made.measurer.asked and not made.measurer.changed


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


def test_nothing_covers_a_node() -> None:
    made = Made({("engine", (0,)): 1.0}, ENGINE)
    with pytest.raises(NoPlacementError):
        PlaceOnce()(made.context, made.measured())
