"""Measuring alone: every offer has an outcome, and typical kernels tell the cost of a switch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from collage.backends.base import BackendKind
from collage.compiler.passes.measure import Measure
from collage.compiler.passes.place import Place
from collage.measure.timing.effort import EXHAUSTIVE, FULL, Effort
from collage.measure.worker.protocol import CandidateRequest
from collage.measure_db.results import Measurement, Rejection
from collage.search.candidates import Offer
from tests.compiler.null import Made, NullBackend, each_node

LIBRARY, OTHER = NullBackend("lib"), NullBackend("other")


def test_every_offer_gets_an_outcome() -> None:
    made = Made(each_node("lib", 10.0), LIBRARY)
    start = made.measured()
    offers = (*start.offers, Offer(CandidateRequest((0, 1), "lib"), "pattern"))
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


def test_few_offers_are_measured_first_and_the_rest_against_the_placed_mix() -> None:
    costs = {**each_node("lib", 10.0), ("lib", (0, 1)): 15.0}
    made = Made(costs, LIBRARY)
    start = replace(made.measured(), outcomes={})
    few = Measure(few=True)(made.context, start)
    assert {request.nodes for request in few.outcomes} == {(0, 1), (2,), (3,)}
    placed = Place()(made.context, few)
    asked: list[Mapping[tuple[int, ...], float]] = []
    order: list[tuple[int, ...]] = []
    race = made.measurer.race

    def noted(requests, rivals_us=None, switch_us=0.0):  # type: ignore[no-untyped-def]
        asked.append(rivals_us)
        order.extend(dict.fromkeys(request.nodes for request in requests))
        return race(requests, rivals_us, switch_us)

    made.measurer.race = noted  # type: ignore[method-assign]
    found = Measure(slack=2.0)(made.context, placed)
    assert len(found.outcomes) == len(costs)
    (rivals_us,) = asked
    assert order == [(0,), (0, 1), (1,), (2,), (3,)]  # what could replace the slowest kernels comes first
    assert rivals_us[0,] == rivals_us[0, 1] == 2.0 * (15.0 + found.epsilon_us)
    assert rivals_us[2,] == 2.0 * (10.0 + found.epsilon_us)


@pytest.mark.parametrize(
    ("effort", "measured"), [(FULL, {(0,), (1,), (0, 1)}), (EXHAUSTIVE, {(0,), (1,), (2,), (3,), (0, 1)})]
)
def test_what_could_gain_next_to_nothing_is_not_measured(
    effort: Effort, measured: set[tuple[int, ...]]
) -> None:
    costs = {
        ("lib", (0,)): 10.0,
        ("lib", (1,)): 10.0,
        ("lib", (2,)): 0.5,
        ("lib", (3,)): 0.4,
        ("lib", (0, 1)): 15.0,
    }
    made = Made(costs, LIBRARY, effort=effort)
    placed = Place()(made.context, made.measured())
    made.measurer.network_us = 20_000.0
    made.measurer.asked.clear()
    Measure()(made.context, replace(placed, outcomes={}))
    assert {request.nodes for request in made.measurer.asked} == measured


@pytest.mark.parametrize(
    ("effort", "measured"),
    [(FULL, {(3,)}), (EXHAUSTIVE, {(0,), (1,), (2,), (3,), (0, 1), (2, 3)})],
)
def test_a_compiler_is_not_measured_on_cuts_through_what_it_fuses(
    effort: Effort, measured: set[tuple[int, ...]]
) -> None:
    """Of relu, tanh, exp and sigmoid only the last one has a kernel of somebody else."""
    compiler = NullBackend("compiler")
    compiler.kind = BackendKind.COMPILER  # type: ignore[misc]
    costs = {
        **each_node("compiler", 10.0),
        **{("compiler", nodes): 15.0 for nodes in ((0, 1), (2, 3), (0, 1, 2, 3))},
        ("lib", (3,)): 10.0,
    }
    made = Made(costs, LIBRARY, compiler, effort=effort)
    placed = Place()(made.context, made.measured())
    made.measurer.asked.clear()
    known = {each: outcome for each, outcome in placed.outcomes.items() if len(each.nodes) == 4}
    Measure()(made.context, replace(placed, outcomes=known))
    parts = {request.nodes for request in made.measurer.asked if len(request.nodes) < 4}
    assert parts == measured


def test_few_are_exact_ones_before_there_is_a_mix_and_reduced_ones_for_its_slowest_kernels_then() -> None:
    costs = {
        **{("lib", (node,)): us for node, us in enumerate((40.0, 5.0, 30.0, 25.0))},
        **each_node("lib bf16", 4.0, 3),
        ("lib bf16", (2, 3)): 8.0,
    }
    made = Made(costs, LIBRARY, tolerance=1e-2)
    start = replace(made.measured(), outcomes={})
    few = Measure(few=True)(made.context, start)
    assert {(request.nodes, request.variant.precision) for request in few.outcomes} == {
        ((node,), "") for node in range(4)
    }
    placed = Place()(made.context, few)
    made.measurer.asked.clear()
    found = Measure(few=True, slowest=0.6)(made.context, placed)
    # The kernels of 40 and 30 us take 70 % of the mix's time. The one that could replace both slow ones comes first.
    assert [request.nodes for request in made.measurer.asked] == [(2, 3), (0,)]
    assert {request.variant.precision for request in made.measurer.asked} == {"bf16"}
    assert found.outcomes.keys() > few.outcomes.keys()
