"""The compiled walk finds what the walk in Python finds: the same of equal covers, and the same last position."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.core.deadline import endless
from collage.errors import NoPlacementError
from collage.graph.dataflow import Graph
from collage.graph.order import branch_order
from collage.graph.storage import BLOCKED, CHANNELS_LAST, PLAIN
from collage.kernel.transform import LayoutTransform
from collage.native.cover_walk import can_walk
from collage.search.candidate import Candidate
from collage.search.compiled_walk import can_be_walked, walked
from collage.search.covers import choices_of, options_of
from collage.search.dp import walked_in_python
from collage.search.placement import NO_TRANSFORMS, charge_us, contenders
from collage.search.storages import StorageRules
from collage.search.transforms import ValueTransform
from tests.compile.search.test_dp import crossings
from tests.compile.search.test_storages import storage_problems
from tests.helpers.search.brute_force import EPSILON, Case, edges
from tests.helpers.strategies import nasnet_like

pytestmark = pytest.mark.skipif(not can_walk(), reason="the compiled walk was not built")


def check_alike(
    graph: Graph,
    candidates: Sequence[Candidate],
    costs: Mapping[ValueTransform, float],
    most_states: int,
) -> bool:
    """Check that both walks end alike; returns whether the walk was exact."""
    order = branch_order(graph)
    try:
        usable = contenders(graph, candidates, EPSILON, 0.0)
    except NoPlacementError:
        return True
    rules = StorageRules(graph, order, usable, costs)
    choices = choices_of(graph, order, usable, rules)
    options = options_of(choices, lambda each: charge_us(each, EPSILON, 0.0), rules, errors=True)
    assert can_be_walked(options, rules)
    heavy = [[replace(option, weight=option.weight << 110) for option in here] for here in options]
    assert not any(heavy) or not can_be_walked(heavy, rules)
    found, *about = walked(options, most_states, rules, endless)
    expected, *as_expected = walked_in_python(options, most_states, rules, endless)
    assert about == as_expected
    assert (None if found is None else list(map(id, found))) == (None if expected is None else list(map(id, expected)))
    return bool(about[1])


@settings(max_examples=100, deadline=None)
@given(storage_problems(), st.sampled_from([1, 2, 4, 128]))
def test_storages(case: Case, most_states: int) -> None:
    check_alike(*case, most_states)


@settings(max_examples=200, deadline=None)
@given(crossings(), st.sampled_from([1, 3, 512]))
def test_circles(case: tuple[Graph, list[Candidate]], most_states: int) -> None:
    check_alike(*case, NO_TRANSFORMS, most_states)


def in_storages(graph: Graph, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Each candidate once more with all that it reads and writes in another storage."""
    found = list(candidates)
    rng = random.Random(0)
    for each in candidates:
        storage = rng.choice([CHANNELS_LAST, BLOCKED])
        taken, made = edges(graph, each)
        cost_us = each.cost_us * rng.uniform(0.6, 1.2)
        reads = tuple((v, storage) for v in taken)
        writes = tuple((v, storage) for v in made)
        found.append(replace(each, cost_us=cost_us, reads=reads, writes=writes))
    return found


@pytest.mark.parametrize("horizontal", [False, True])
def test_a_large_network_in_several_storages(horizontal: bool) -> None:
    """With a kernel for all of it, whose mask takes many words, and with states that are dropped."""
    graph, plain = nasnet_like(cells=4, horizontal=horizontal)
    whole = Candidate(tuple(range(len(graph.nodes))), "engine", 1e6)
    candidates = in_storages(graph, [*plain, whole])
    storages = PLAIN, CHANNELS_LAST, BLOCKED
    costs = {
        (value.id, LayoutTransform(value.type, source, target)): 1.0 + value.id % 3
        for value in graph.values
        for source, target in permutations(storages, 2)
    }
    assert not check_alike(graph, candidates, costs, 32)
    assert check_alike(graph, [whole], costs, 32)
