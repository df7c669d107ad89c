"""What another choice costs a placement: compared with all placements that make it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import event, given, settings

from collage.errors import NoPlacementError
from collage.graph.convexity import is_convex
from collage.graph.storage import CHANNELS_LAST, PLAIN
from collage.kernel.transform import LayoutTransform
from collage.search import exchange
from collage.search.candidate import Candidate
from collage.search.dp import place
from collage.search.exchange import Exchanges
from tests.helpers.search.brute_force import EPSILON, Case, least_cost
from tests.helpers.search.storage_problems import storage_problems
from tests.helpers.strategies import TENSOR, graph_of

CHAIN = graph_of([(0, 1), (1, 2)], 3)


@settings(max_examples=150, deadline=None)
@given(storage_problems())
def test_an_exchange_is_the_cheapest_placement_with_the_candidate_and_all_else_kept(case: Case) -> None:
    graph, candidates, costs = case
    try:
        placement = place(graph, candidates, float(EPSILON), transforms_us=costs)
    except NoPlacementError:
        event("no placement")
        return
    exchanges = Exchanges(graph, placement.candidates, candidates, float(EPSILON), costs)
    for candidate in (each for each in candidates if is_convex(graph, each.nodes)):
        cut = {n for each in placement.candidates if {*each.nodes} & {*candidate.nodes} for n in each.nodes}
        kept = [each for each in placement.candidates if not cut & {*each.nodes}]
        beside = [each for each in candidates if {*each.nodes} <= cut - {*candidate.nodes}]
        expected = least_cost((graph, [*kept, candidate, *beside], costs))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(exchange, "_MOST_COVERS", 1 << 20)
            patch.setattr(exchange, "_MOST_STEPS", 1 << 20)
            found = exchanges.of(candidate)
        assert (found is None) == (expected is None)
        if found is not None and expected is not None:
            event("faster" if found.total_us < 0 else "slower")
            assert placement.predicted_us + found.total_us == pytest.approx(float(expected))
            assert found.total_us >= -1e-9, "the placement is the cheapest one"


def test_a_kernel_that_is_faster_alone_pays_for_conversions_and_for_what_it_cuts() -> None:
    fused = Candidate((0, 1), "a", 10.0, noise_us=0.25, switches=0)
    last = Candidate((2,), "a", 3.0, switches=0)
    stored = ((2, CHANNELS_LAST),)
    alone = Candidate((1,), "b", 4.0, noise_us=0.5, switches=1, reads=((1, CHANNELS_LAST),), writes=stored)
    first = Candidate((0,), "a", 7.0, noise_us=0.5, switches=0)
    slow = Candidate((0,), "b", 9.0, switches=0)
    there, back = (LayoutTransform(TENSOR, *each) for each in ((PLAIN, CHANNELS_LAST), (CHANNELS_LAST, PLAIN)))
    costs = {(1, there): 1.0, (2, back): 1.5}
    exchanges = Exchanges(CHAIN, [fused, last], [fused, last, alone, first, slow], 2.0, costs)
    found = exchanges.of(alone)
    assert found is not None
    assert (found.kernel_us, found.rest_us, found.transforms_us, found.rest) == (4.0 + 2.0 - 10.0, 7.0, 2.5, 1)
    assert found.total_us == 5.5 and found.noise_us == 1.25
    assert exchanges.of(fused) is not None and math.isclose(exchanges.of(fused).total_us, 0.0)  # type: ignore[union-attr]
    assert Exchanges(CHAIN, [fused, last], [alone, first], 2.0, {}).of(alone) is None
    assert Exchanges(CHAIN, [fused, last], [alone, replace(first, outrun=True)], 2.0, costs).of(alone) is None


def test_a_rest_that_nothing_covers_ends_soon() -> None:
    count = 150
    chain = graph_of([(n, n + 1) for n in range(count - 1)], count)
    whole, first = Candidate(tuple(range(count)), "engine", 10.0), Candidate((0,), "lib", 1.0)
    pieces = [Candidate((n, n + 1), "lib", 1.0) for n in range(1, count - 1)]  # of 149 nodes, which is odd
    pieces += [Candidate((n, n + 1), "other", 1.5) for n in range(1, count - 1)]
    singles = [Candidate((n,), "lib", 1.0) for n in range(1, count)]
    assert Exchanges(chain, [whole], [first, *pieces], 0.0, {}).of(first) is None
    found = Exchanges(chain, [whole], [first, *singles], 0.0, {}).of(first)
    assert found is not None and (found.rest, found.rest_us) == (count - 1, count - 1)
