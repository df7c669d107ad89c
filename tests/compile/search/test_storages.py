"""Storages in the search: layout transforms are priced once, and the dynamic program stays exact."""

from __future__ import annotations

import pytest
from hypothesis import event, given, settings

from collage.errors import NoPlacementError
from collage.graph.storage import BLOCKED, CHANNELS_LAST, PLAIN
from collage.kernel.transform import LayoutTransform
from collage.search.candidate import Candidate
from collage.search.dp import place
from collage.search.placement import finish
from collage.search.transforms import PlacedTransform
from tests.helpers.search.brute_force import EPSILON, Case, least_cost
from tests.helpers.search.exact import place_exact
from tests.helpers.search.storage_problems import storage_problems
from tests.helpers.strategies import TENSOR, GraphBuilder

LAST = CHANNELS_LAST


@settings(max_examples=100, deadline=None)
@given(storage_problems())
def test_the_dynamic_program_equals_brute_force(case: Case) -> None:
    graph, candidates, costs = case
    best = least_cost(case)
    if best is None:
        with pytest.raises(NoPlacementError):
            place(graph, candidates, EPSILON, transforms_us=costs)
        return
    placement = place(graph, candidates, EPSILON, transforms_us=costs)
    event(f"layout transforms: {len(placement.transforms)}")
    assert placement.exact
    assert placement.predicted_us == pytest.approx(float(best))
    assert placement == finish(graph, placement.candidates, EPSILON, transforms_us=costs)


@settings(max_examples=60, deadline=None)
@given(storage_problems())
def test_the_dynamic_program_equals_the_exact_solver(case: Case) -> None:
    graph, candidates, costs = case
    try:
        expected = place_exact(graph, candidates, EPSILON, transforms_us=costs)
    except NoPlacementError:
        with pytest.raises(NoPlacementError):
            place(graph, candidates, EPSILON, transforms_us=costs)
        return
    found = place(graph, candidates, EPSILON, transforms_us=costs)
    assert found.predicted_us == pytest.approx(expected.predicted_us)


def test_readers_that_want_the_same_share_a_transform() -> None:
    builder = GraphBuilder()
    source = builder.node(builder.input())
    graph = builder.finish(*(builder.node(source) for _ in range(3)))
    x = graph.inputs[0]
    made = graph.nodes[0].outputs[0]
    candidates = [
        Candidate((0,), "a", 1.0, writes=((made, BLOCKED),)),
        Candidate((1,), "a", 1.0, reads=((made, LAST),)),
        Candidate((2,), "a", 1.0, reads=((made, LAST),)),
        Candidate((3,), "a", 1.0, reads=((made, BLOCKED),)),
    ]
    shared = LayoutTransform(TENSOR, BLOCKED, LAST)
    costs = {(made, shared): 2.0, (x, LayoutTransform(TENSOR, PLAIN, LAST)): 9.0}
    placement = place(graph, candidates, 0.0, transforms_us=costs)
    assert placement.transforms == (PlacedTransform(made, shared, 2.0),)
    assert placement.predicted_us == 6.0


def test_outputs_are_handed_over_plain() -> None:
    builder = GraphBuilder()
    graph = builder.finish(builder.node(builder.input()))
    (out,) = graph.outputs
    fast = Candidate((0,), "a", 1.0, writes=((out, LAST),))
    slow = Candidate((0,), "b", 3.0)
    back = out, LayoutTransform(TENSOR, LAST, PLAIN)
    assert place(graph, [fast, slow], 0.0, transforms_us={back: 1.0}).candidates == (fast,)
    assert place(graph, [fast, slow], 0.0, transforms_us={back: 2.5}).candidates == (slow,)
    assert place(graph, [fast, slow], 0.0).candidates == (slow,)
