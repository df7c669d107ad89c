"""The dynamic program against brute force and the exact solver, and what it must refuse."""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from collage.errors import NoPlacementError
from collage.graph.convexity import CyclicPlacementError, quotient_order
from collage.graph.dataflow import Graph
from collage.search.candidate import Candidate
from collage.search.dp import place
from collage.search.placement import Placement, check_placement
from tests.helpers.search.exact import place_exact
from tests.helpers.strategies import GraphBuilder, graph_of, nasnet_like, problems

EPSILON = 0.5


def total(candidates: Sequence[Candidate], margin: float) -> Fraction:
    """Exact sum of the charges: in the tests all costs are multiples of powers of two."""
    return sum(
        (Fraction(c.cost_us) + Fraction(EPSILON) + Fraction(margin) * Fraction(c.noise_us) for c in candidates),
        Fraction(0),
    )


def brute_force(
    graph: Graph, candidates: Sequence[Candidate], margin: float
) -> tuple[tuple[Fraction, int] | None, bool]:
    """Least (sum, number of candidates) of covers without a circle; whether one with a circle costs less."""
    best: tuple[Fraction, int] | None = None
    cheapest_circle: tuple[Fraction, int] | None = None

    def extend(chosen: list[Candidate], covered: frozenset[int]) -> None:
        nonlocal best, cheapest_circle
        node = next((n for n in range(len(graph.nodes)) if n not in covered), None)
        if node is None:
            score = (total(chosen, margin), len(chosen))
            try:
                quotient_order(graph, [c.nodes for c in chosen])
            except CyclicPlacementError:
                cheapest_circle = min(cheapest_circle or score, score)
            else:
                best = min(best or score, score)
            return
        for candidate in candidates:
            if candidate.nodes[0] == node and covered.isdisjoint(candidate.nodes):
                extend([*chosen, candidate], covered | set(candidate.nodes))

    extend([], frozenset())
    return best, cheapest_circle is not None and (best is None or cheapest_circle < best)


def check_sound(graph: Graph, candidates: Sequence[Candidate], placement: Placement) -> None:
    assert check_placement(graph, placement.candidates) == placement.candidates
    assert set(placement.candidates) <= set(candidates)
    assert placement.predicted_us == pytest.approx(float(total(placement.candidates, 0)))


@settings(max_examples=100, deadline=None)
@given(problems(), st.sampled_from([0.0, 0.5]))
def test_the_dynamic_program_equals_brute_force(case: tuple[Graph, list[Candidate]], margin: float) -> None:
    graph, candidates = case
    best, circle = brute_force(graph, candidates, margin)
    event(f"placement: {best is not None}, a circle would be cheaper: {circle}")
    if best is None:
        with pytest.raises(NoPlacementError):
            place(graph, candidates, EPSILON, margin=margin)
        return
    placement = place(graph, candidates, EPSILON, margin=margin)
    check_sound(graph, candidates, placement)
    assert placement.exact
    assert (total(placement.candidates, margin), len(placement.candidates)) == best


@st.composite
def crossings(draw: st.DrawFn) -> tuple[Graph, list[Candidate]]:
    """Parallel chains with cheap kernels across them: the cheapest cover often waits for itself."""
    chains, length = draw(st.sampled_from([(2, 2), (2, 3), (2, 4), (3, 2), (3, 3), (4, 2)]))
    count = chains * length
    order = draw(st.permutations(range(chains)))
    graph = graph_of([(k * length + i, k * length + i + 1) for k in order for i in range(length - 1)], count)
    found = [Candidate((node,), "one", 4.0) for node in range(count)]
    pair = st.sets(st.integers(0, count - 1), min_size=2, max_size=3)
    for nodes in draw(st.lists(pair, min_size=4, max_size=14)):
        found.append(Candidate(tuple(sorted(nodes)), "many", draw(st.integers(1, 8)) / 4))
    return graph, found


@settings(max_examples=300, deadline=None)
@given(crossings())
def test_covers_in_a_circle_are_refused_and_nothing_else(case: tuple[Graph, list[Candidate]]) -> None:
    graph, candidates = case
    best, circle = brute_force(graph, candidates, 0.0)
    event(f"a circle would be cheaper: {circle}")
    placement = place(graph, candidates, EPSILON)
    check_sound(graph, candidates, placement)
    assert placement.exact
    assert (total(placement.candidates, 0.0), len(placement.candidates)) == best


@settings(max_examples=60, deadline=None)
@given(problems() | crossings(), st.sampled_from([0.0, 0.5]))
def test_the_dynamic_program_equals_the_exact_solver(case: tuple[Graph, list[Candidate]], margin: float) -> None:
    graph, candidates = case
    try:
        placement = place(graph, candidates, EPSILON, margin=margin)
    except NoPlacementError:
        with pytest.raises(NoPlacementError):
            place_exact(graph, candidates, EPSILON, margin=margin)
        return
    exact = place_exact(graph, candidates, EPSILON, margin=margin)
    check_sound(graph, candidates, exact)
    assert total(exact.candidates, margin) == total(placement.candidates, margin)


@settings(max_examples=60, deadline=None)
@given(problems() | crossings(), st.randoms(use_true_random=False))
def test_the_order_of_the_candidates_does_not_matter(case: tuple[Graph, list[Candidate]], rng: random.Random) -> None:
    graph, candidates = case

    def answer(given: Sequence[Candidate]) -> Placement | str:
        try:
            return place(graph, given, EPSILON)
        except NoPlacementError as error:
            return str(error)

    assert answer(rng.sample(candidates, len(candidates))) == answer(candidates)


@settings(max_examples=100, deadline=None)
@given(problems() | crossings(), st.integers(1, 3))
def test_dropping_states_still_gives_a_placement(case: tuple[Graph, list[Candidate]], max_states: int) -> None:
    graph, candidates = case
    try:
        best = place(graph, candidates, EPSILON)
    except NoPlacementError:
        with pytest.raises(NoPlacementError):
            place(graph, candidates, EPSILON, max_states=max_states)
        return
    placement = place(graph, candidates, EPSILON, max_states=max_states)
    check_sound(graph, candidates, placement)
    assert placement.predicted_us >= best.predicted_us
    if placement.exact:
        assert placement == best


def test_three_kernels_that_wait_in_a_circle_through_others() -> None:
    # Chains 0-1-2, 3-4-5, 6-7-8: each kernel begins where the one before it in the circle ends.
    graph = graph_of([(0, 1), (1, 2), (3, 4), (4, 5), (6, 7), (7, 8)], 9)
    singles = [Candidate((n,), "one", 10.0) for n in range(9)]
    circle = [Candidate(nodes, "two", 1.0) for nodes in [(2, 3), (5, 6), (0, 8)]]
    placement = place(graph, singles + circle, EPSILON)
    assert len(set(placement.candidates) & set(circle)) == 2
    assert placement.predicted_us == place_exact(graph, singles + circle, EPSILON).predicted_us


def test_sets_that_are_not_convex_are_ignored() -> None:
    graph = graph_of([(0, 1), (1, 2), (0, 2)], 3)
    singles = [Candidate((n,), "one", 10.0) for n in range(3)]
    placement = place(graph, [*singles, Candidate((0, 2), "bad", 0.0)], EPSILON)
    assert placement.candidates == tuple(singles)


def test_a_context_switch_is_charged_for_each_candidate() -> None:
    graph = graph_of([(0, 1)], 2)
    fused, *single = [Candidate((0, 1), "a", 3.0), Candidate((0,), "b", 1.0), Candidate((1,), "b", 1.0)]
    assert place(graph, [fused, *single], 0.5).candidates == tuple(single)
    assert place(graph, [fused, *single], 1.5).candidates == (fused,)
    assert place(graph, [fused, *single], 1.5).predicted_us == 4.5


def test_of_equal_ways_the_one_with_fewer_kernels_wins() -> None:
    graph = graph_of([(0, 1), (1, 2)], 3)
    thirds = [Candidate((n,), "a", 0.1) for n in range(3)]
    whole = Candidate((0, 1, 2), "z", 0.3)  # in floating point 0.1 + 0.1 + 0.1 is not 0.3
    assert place(graph, [*thirds, whole], 0.0).candidates == (whole,)

    graph = graph_of([(n, n + 1) for n in range(4)], 5)
    three = [Candidate(nodes, "a", 2.0) for nodes in [(0,), (1,), (2, 3, 4)]]
    two = [Candidate(nodes, "a", 3.0) for nodes in [(0, 1, 2, 3), (4,)]]
    assert place(graph, three + two, 0.0).candidates == tuple(two)


def test_a_challenger_must_beat_the_noise() -> None:
    graph = graph_of([(0, 1)], 2)
    pieces = [Candidate((n,), "a", 4.9, noise_us=0.3) for n in range(2)]
    whole = Candidate((0, 1), "b", 10.0, noise_us=0.3)
    assert place(graph, [*pieces, whole], 0.0).candidates == tuple(pieces)
    placement = place(graph, [*pieces, whole], 0.0, margin=1.0)
    assert placement.candidates == (whole,)
    assert placement.predicted_us == 10.0  # the noise chooses, it is not part of the prediction


def test_nodes_without_a_candidate_are_named() -> None:
    build = GraphBuilder()
    x = build.input()
    graph = build.finish(build.node(build.node(build.node(x), op="nn.conv2d"), op="onnx.Einsum"))
    with pytest.raises(NoPlacementError, match=r"covers node 1 \(nn.conv2d\), node 2 \(onnx.Einsum\)$"):
        place(graph, [Candidate((0,), "a", 1.0)], EPSILON)


def test_overlaps_without_a_cover_are_told_apart() -> None:
    graph = graph_of([(0, 1), (1, 2)], 3)
    pair = [Candidate((0, 1), "a", 1.0), Candidate((1, 2), "a", 1.0)]
    for solve in (place, place_exact):
        with pytest.raises(NoPlacementError, match="each node has candidates, but no combination"):
            solve(graph, pair, EPSILON)


@pytest.mark.parametrize("horizontal", [False, True])
def test_a_large_network_is_solved_exactly(horizontal: bool) -> None:
    graph, candidates = nasnet_like(horizontal=horizontal)
    placement = place(graph, candidates, 2.0)
    assert placement.exact
    assert placement == place(graph, candidates[::-1], 2.0)
    assert placement.predicted_us == pytest.approx(place_exact(graph, candidates, 2.0).predicted_us)
