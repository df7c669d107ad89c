"""Placing alone, with made-up costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collage.compiler.events import Searched
from collage.compiler.passes.place import Place
from collage.errors import NoPlacementError
from collage.measure_db.results import IN_NETWORK, Measurement, Rejection, RejectionKind, Slower
from tests.helpers.compiler.null import WHOLE, Made, NullBackend, each_node, regions

LIBRARY, ENGINE = NullBackend("lib", team=True), NullBackend("engine", engine=True)


def test_the_cheapest_cover_is_proposed() -> None:
    made = Made({**each_node("lib", 10.0), ("lib", (1, 2)): 12.0, ("engine", WHOLE): 35.0}, LIBRARY, ENGINE)
    found = Place()(made.context, made.measured())
    assert regions(found) == [("lib", (0,)), ("lib", (1, 2)), ("lib", (3,))]
    assert found.placed.mix is found.placed.placement
    assert sum(isinstance(event, Searched) for event in found.log) == 1


def test_neighbours_on_one_engine_are_measured_as_one_region() -> None:
    costs = {**each_node("engine", 10.0), ("lib", (0,)): 1.0, ("lib", (3,)): 1.0, ("engine", (1, 2)): 12.0}
    made = Made(costs, LIBRARY, ENGINE)
    start = made.measured()
    known = [offer for offer in start.offers if offer.request.nodes != (1, 2)]
    start = replace(start, offers=tuple(known), outcomes=made.measurer.known(o.request for o in known))
    found = Place()(made.context, start)
    assert regions(found) == [("lib", (0,)), ("engine", (1, 2)), ("lib", (3,))]
    assert ("engine", (1, 2)) in [(request.backend, request.nodes) for request in made.measurer.asked]
    assert "neighbours on one engine" in [offer.pattern for offer in found.offers]
    assert Place(rounds=1)(made.context, start).placed.mix != found.placed.mix


def test_what_lost_a_race_is_measured_to_the_end_where_it_could_gain() -> None:
    made = Made({**each_node("lib", 10.0), ("lib", (1, 2)): 12.0}, LIBRARY)
    start = made.measured()
    fused = next(offer.request for offer in start.offers if offer.request.nodes == (1, 2))
    start = replace(start, outcomes={**start.outcomes, fused: Slower(11.5, 11.0, 3)})
    found = Place()(made.context, start)
    assert made.measurer.asked == [fused]
    assert found.outcomes[fused] == Measurement(12.0, 0.0, 12.0, 9, 0.0)
    assert regions(found) == [("lib", (0,)), ("lib", (1, 2)), ("lib", (3,))]


def test_what_lost_a_race_is_let_be_where_it_could_gain_nothing() -> None:
    made = Made({**each_node("lib", 10.0), ("lib", (1, 2)): 1.0}, LIBRARY)
    start = made.measured()
    fused = next(offer.request for offer in start.offers if offer.request.nodes == (1, 2))
    start = replace(start, outcomes={**start.outcomes, fused: Slower(30.0, 11.0, 3)})
    found = Place()(made.context, start)
    assert made.measurer.asked == []
    assert len(regions(found)) == 4
    (outrun,) = [c for c in found.placed.candidates if c.outrun]
    assert (outrun.nodes, outrun.cost_us) == ((1, 2), 30.0)


def test_what_lost_against_a_kernel_that_was_rejected_since_is_measured_to_the_end() -> None:
    made = Made({**each_node("lib", 10.0), **each_node("other", 20.0)}, LIBRARY, NullBackend("other"))
    start = made.measured()
    outcomes = dict(start.outcomes)
    for request in outcomes:
        if request.backend == "other":
            outcomes[request] = Slower(19.0, 10.0, 12)
        elif request.nodes == (1,):
            outcomes[request] = Rejection(RejectionKind.CRASHED, f"{IN_NETWORK}: SIGSEGV")
    found = Place()(made.context, replace(start, outcomes=outcomes))
    assert [(each.backend, each.nodes) for each in made.measurer.asked] == [("other", (1,))]
    assert regions(found) == [("lib", (0,)), ("other", (1,)), ("lib", (2,)), ("lib", (3,))]


def test_a_backend_with_many_faults_is_left_out() -> None:
    costs = {**each_node("lib", 1.0), ("engine", WHOLE): 100.0}
    made = Made(costs, LIBRARY, ENGINE)
    failed = Rejection(RejectionKind.CRASHED, f"{IN_NETWORK}: SIGSEGV")
    made.measurer.rejected = {("lib", (0, 1)): failed}
    start = made.measured()
    more = Made({**costs, ("lib", (0, 1)): 2.0}, LIBRARY, ENGINE).measured()
    start = replace(start, offers=more.offers, outcomes=made.measurer.known(o.request for o in more.offers))
    assert len(regions(Place()(made.context, start))) == 4
    assert regions(Place(most_faults=1)(made.context, start)) == [("engine", WHOLE)]


def test_nothing_covers_a_node() -> None:
    made = Made({("lib", (0,)): 1.0}, LIBRARY)
    with pytest.raises(NoPlacementError):
        Place()(made.context, made.measured())
