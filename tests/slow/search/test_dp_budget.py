"""The search under an error budget against brute force and the exact solver, with made-up times and errors."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from itertools import permutations

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from collage.core.deadline import BudgetOverError
from collage.errors import NoPlacementError
from collage.graph.dataflow import Graph
from collage.graph.storage import BLOCKED, PLAIN
from collage.kernel.transform import LayoutTransform
from collage.search import dp
from collage.search.candidate import Candidate
from collage.search.dp import place
from collage.search.dp_budget import Budget, least_within, place_within
from collage.search.placement import check_placement, finish
from tests.helpers.search.brute_force import EPSILON, Case, least_cost
from tests.helpers.search.exact import place_exact
from tests.helpers.strategies import graph_of, nasnet_like, problems


@st.composite
def reduced_problems(draw: st.DrawFn) -> Case:
    """Problems in which candidates come in two precisions, and values in two storages.

    Costs are quarters and errors whole numbers, so that sums are exact. Sometimes a node has no exact candidate.
    """
    graph, plain = draw(problems(max_nodes=6))
    stored = draw(st.booleans())
    candidates: list[Candidate] = []
    for each in plain:
        if draw(st.integers(0, 9)):
            candidates.append(each)
        for _ in range(draw(st.integers(0, 2))):
            reduced = replace(each, cost_us=draw(st.integers(0, 16)) / 4, error=float(draw(st.integers(1, 6))))
            values = graph.nodes[each.nodes[-1]].outputs
            storages = draw(st.lists(st.sampled_from([PLAIN, BLOCKED]), min_size=2, max_size=2))
            writes = [(v, s) for v, s in zip(values, storages, strict=False) if stored and s != PLAIN]
            candidates.append(replace(reduced, writes=tuple(writes)))
    costs = {
        (value.id, LayoutTransform(value.type, source, target)): draw(st.integers(0, 4)) / 4
        for value in graph.values
        for source, target in permutations([PLAIN, BLOCKED], 2)
        if draw(st.integers(0, 9))
    }
    return graph, candidates, costs


@settings(max_examples=100, deadline=None)
@given(reduced_problems(), st.integers(0, 20), st.sampled_from([0.0, 0.5]), st.sampled_from([0.0, 0.3, 4.0]))
def test_placement_under_a_budget_equals_brute_force(case: Case, budget: int, margin: float, price_us: float) -> None:
    """Whatever price the search begins with."""
    graph, candidates, costs = case
    about = Budget(budget, gap=0.0, price_us=price_us)
    best = least_cost(case, margin, budget)
    if best is None:
        with pytest.raises(NoPlacementError):
            place_within(graph, candidates, EPSILON, about, margin=margin, transforms_us=costs)
        return
    found = place_within(graph, candidates, EPSILON, about, margin=margin, transforms_us=costs)
    assert check_placement(graph, found.candidates) == found.candidates
    assert set(found.candidates) <= set(candidates)
    assert found.error <= budget
    assert found.exact
    total = Fraction(found.predicted_us)
    total += sum(Fraction(margin) * Fraction(c.noise_us) for c in found.candidates)
    assert total == best
    for each in (about, replace(about, price_us=found.price_us)):
        bound = least_within(graph, candidates, EPSILON, each, margin=margin, transforms_us=costs)
        assert bound <= float(best) + 1e-5
    event(f"the budget binds: {place(graph, candidates, EPSILON, transforms_us=costs).error > budget}")


@settings(max_examples=60, deadline=None)
@given(reduced_problems(), st.integers(0, 20))
def test_placement_under_a_budget_equals_the_exact_solver(case: Case, budget: int) -> None:
    graph, candidates, costs = case
    try:
        found = place_within(graph, candidates, EPSILON, Budget(budget, gap=0.0), transforms_us=costs)
    except NoPlacementError:
        with pytest.raises(NoPlacementError):
            place_exact(graph, candidates, EPSILON, transforms_us=costs, budget=budget)
        return
    exact = place_exact(graph, candidates, EPSILON, transforms_us=costs, budget=budget)
    assert exact.error <= budget
    assert exact.predicted_us == pytest.approx(found.predicted_us)


@settings(max_examples=100, deadline=None)
@given(reduced_problems(), st.integers(0, 20), st.integers(1, 3))
def test_dropping_labels_still_keeps_the_budget(case: Case, budget: int, labels: int) -> None:
    graph, candidates, costs = case
    try:
        best = place_within(graph, candidates, EPSILON, Budget(budget, gap=0.0), transforms_us=costs)
    except NoPlacementError:
        with pytest.raises(NoPlacementError):
            place_within(graph, candidates, EPSILON, Budget(budget, labels, gap=0.0), transforms_us=costs)
        return
    found = place_within(graph, candidates, EPSILON, Budget(budget, labels, gap=0.0), transforms_us=costs)
    assert found.error <= budget
    assert found.predicted_us >= best.predicted_us
    if found.exact:
        assert found.predicted_us == best.predicted_us


@settings(max_examples=60, deadline=None)
@given(problems())
def test_without_errors_it_is_the_plain_search(case: tuple[Graph, list[Candidate]]) -> None:
    graph, candidates = case
    for budget in (0.0, 1.0):
        try:
            found = place(graph, candidates, EPSILON)
        except NoPlacementError:
            with pytest.raises(NoPlacementError):
                place_within(graph, candidates, EPSILON, Budget(budget, gap=0.0))
        else:
            assert place_within(graph, candidates, EPSILON, Budget(budget, gap=0.0)) == found


def test_the_budget_goes_where_it_saves_most() -> None:
    graph = graph_of([(0, 1), (1, 2)], 3)
    exact = [Candidate((n,), "a", 10.0) for n in range(3)]
    saved = [(6.0, 1.0), (5.0, 1.0), (9.0, 3.0)]
    reduced = [Candidate((n,), "b", 10.0 - us, error=error) for n, (us, error) in enumerate(saved)]
    chosen = {0: [], 1: [0], 2: [0, 1], 3: [0, 1], 4: [0, 2], 5: [0, 1, 2]}
    for budget, nodes in chosen.items():
        found = place_within(graph, [*exact, *reduced], 0.0, Budget(budget, gap=0.0))
        assert [c.nodes[0] for c in found.candidates if c.error] == nodes, budget


def test_a_network_of_hundreds_of_nodes_comes_close_to_the_exact_solver() -> None:
    graph, exact = nasnet_like(cells=5)
    rng = random.Random(0)
    reduced = [
        replace(c, cost_us=c.cost_us * rng.uniform(0.4, 1.1), error=rng.uniform(0.1, 10.0) * len(c.nodes))
        for c in exact
        if rng.random() < 0.5
    ]
    free = place(graph, [*exact, *reduced], 2.0)
    fastest, slowest = free.predicted_us, place(graph, exact, 2.0).predicted_us
    budget = free.error / 4
    best = place_exact(graph, [*exact, *reduced], 2.0, budget=budget).predicted_us
    assert fastest < best < slowest
    for gap in (0.0, 3e-3):
        found = place_within(graph, [*exact, *reduced], 2.0, Budget(budget, gap=gap))
        assert found.error <= budget
        assert found == finish(graph, found.candidates, 2.0, exact=found.exact)
        assert found.predicted_us <= 1.003 * best
    again = Budget(budget, price_us=found.price_us)
    assert 0.985 * best <= least_within(graph, [*exact, *reduced], 2.0, again) <= best


def _wide(width: int, seed: int) -> tuple[Graph, list[Candidate], float]:
    """Independent nodes and one that reads them all, with more states than are followed; and a budget."""
    rng = random.Random(seed)
    candidates = [
        Candidate((n,), backend, rng.randint(4, 40) / 4, error=error)
        for n in range(width + 1)
        for backend, error in (("a", 0.0), ("b", float(rng.randint(1, 6))))
    ]
    candidates += [
        Candidate((i, j), "c", rng.randint(8, 60) / 4, error=float(rng.choice([0, 0, 1, 2, 5])))
        for i in range(width)
        for j in range(i + 1, width)
        if rng.random() < 0.6
    ]
    return graph_of([(n, width) for n in range(width)], width + 1), candidates, float(rng.randint(0, 20))


@pytest.mark.parametrize("price_us", [0.0, 0.3])
def test_where_states_are_dropped_a_placement_is_called_exact_only_if_it_is(
    price_us: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A placement within the budget may cost less there than the cheapest one that is found without it."""
    monkeypatch.setattr(dp, "MOST_STATES_PLAIN", 1)
    exact = 0
    for seed in range(200):
        graph, candidates, error = _wide(6, seed)
        found = place_within(graph, candidates, 0.5, Budget(error, gap=0.0, price_us=price_us))
        assert found.error <= error
        if found.exact:
            exact += 1
            best = place_exact(graph, candidates, 0.5, budget=error)
            assert found.predicted_us == pytest.approx(best.predicted_us), seed
    assert exact > 10


def test_a_search_ends_where_it_has_to() -> None:
    graph, exact = nasnet_like(cells=1)
    reduced = [replace(c, cost_us=c.cost_us / 2, error=1.0) for c in exact]
    for error in (0.0, 2.0, 1e9):
        visited: list[int] = []

        def ended(visited: list[int] = visited) -> None:
            visited.append(1)
            if len(visited) == 30:
                raise BudgetOverError

        with pytest.raises(BudgetOverError):
            place_within(graph, [*exact, *reduced], 2.0, Budget(error), check=ended)
        assert len(visited) == 30
