"""Measuring alone: every offer has an outcome, and typical kernels tell the cost of a switch."""

from __future__ import annotations

from dataclasses import replace

from collage.compiler.passes.measure import Measure
from collage.measure_db.protocol import Request
from collage.measure_db.results import Measurement, Rejection
from collage.search.candidates import Offer
from tests.compiler.null import Made, NullBackend, each_node

LIBRARY, OTHER = NullBackend("lib"), NullBackend("other")


def test_every_offer_gets_an_outcome() -> None:
    made = Made(each_node("lib", 10.0), LIBRARY)
    start = made.measured()
    offers = (*start.offers, Offer(Request((0, 1), "lib"), "pattern"))
    found = Measure()(made.context, replace(start, offers=offers, outcomes={}))
    kinds = [type(found.outcomes[offer.request]) for offer in offers]
    assert kinds == [Measurement] * 4 + [Rejection]
    assert found.epsilon_us == 0.5


def test_a_switch_is_measured_with_typical_kernels_of_each_backend_in_turn() -> None:
    costs = {("lib", (0,)): 1.0, ("lib", (1,)): 190.0, ("lib", (2,)): 9000.0, ("other", (3,)): 5.0}
    made = Made(costs, LIBRARY, OTHER)
    Measure(switched=2)(made.context, made.measured())
    (asked,) = made.measurer.switched
    assert [(request.backend, request.nodes) for request in asked] == [
        ("lib", (1,)),
        ("other", (3,)),
        ("lib", (2,)),
    ]
