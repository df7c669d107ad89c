"""Candidates and the check every placement goes through."""

from __future__ import annotations

import pytest

from collage.graph.convexity import CyclicPlacementError
from collage.search.candidate import Candidate
from collage.search.placement import check_placement
from tests.helpers.strategies import graph_of

CHAIN = graph_of([(0, 1), (1, 2), (2, 3)], 4)


def test_launch_order_follows_the_data() -> None:
    late, early = Candidate((2, 3), "b", 1.0), Candidate((0, 1), "a", 1.0)
    assert check_placement(CHAIN, [late, early]) == (early, late)


def test_each_node_must_be_covered_once() -> None:
    with pytest.raises(ValueError, match=r"2 times: node 1 \(nn.relu\), 0 times: node 3 \(nn.relu\)$"):
        check_placement(CHAIN, [Candidate((0, 1), "a", 1.0), Candidate((1, 2), "a", 1.0)])


def test_a_circle_is_refused() -> None:
    with pytest.raises(CyclicPlacementError):
        check_placement(CHAIN, [Candidate((0, 2), "a", 1.0), Candidate((1, 3), "a", 1.0)])
