"""Repeated blocks are found by names or by repetition, and folding them makes no circles."""

from __future__ import annotations

import random
from itertools import pairwise

from collage.report.folding import MANY, Block, blocks
from collage.report.network import REGION, Box, Edge, Network, network
from collage.report.report import NodeReport
from tests.helpers.made_up_modules import layers, made_up


def labels(found: tuple[Block, ...]) -> list[str]:
    """The labels of blocks that are no rows."""
    rows = {each.parent for each in found}
    return [each.label for at, each in enumerate(found) if at not in rows]


def chain(ops: str, names: list[str] | None = None, skips: tuple[tuple[int, int], ...] = ()) -> tuple[Block, ...]:
    """The blocks of a chain of operators, each a letter."""
    nodes = [NodeReport(op, name, op) for op, name in zip(ops, names or [""] * len(ops), strict=True)]
    boxes = [Box(op, REGION, "b", at, (at,), (op,)) for at, op in enumerate(ops)]
    edges = [Edge(*pair, "") for pair in (*pairwise(range(len(ops))), *skips)]
    return blocks(Network(tuple(boxes), tuple(edges)), nodes)


def test_layers_by_name() -> None:
    shown = made_up(layers(12, 5))
    found = blocks(network(shown.report, shown.program), shown.report.nodes)
    assert found[0].label == "12 × layers"
    assert labels(found) == [f"layers.{i}" for i in range(12)]
    assert all(each.folded for each in found[1:]) and not found[0].folded
    assert all(each.parent == 0 for each in found[1:])
    assert [each.end for each in found[1:-1]] == [each.first for each in found[2:]]


def test_rows_are_folded_if_blocks_do_not_suffice() -> None:
    shown = made_up(layers(2 * MANY, 3))
    assert blocks(network(shown.report, shown.program), shown.report.nodes)[0].folded


def test_small_networks_are_unfolded() -> None:
    shown = made_up(layers(3, 4))
    assert not any(each.folded for each in blocks(network(shown.report, shown.program), shown.report.nodes))


def test_repetition_without_names() -> None:
    assert labels(chain("sabcabcabcabct")) == [f"block 1.{i}" for i in (1, 2, 3, 4)]
    assert [(each.first, each.end) for each in chain("sabcabcabct")[1:]] == [(1, 4), (4, 7), (7, 10)]
    assert chain("abcdefgh") == ()


def test_a_residual_block_begins_after_an_addition() -> None:
    skips = ((0, 2), (2, 5), (5, 8))  # additions read the value before each block
    assert [(each.first, each.end) for each in chain("rsacbacbat", skips=skips)] == [(3, 6), (6, 9)]


def test_folded_networks_have_no_circles() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        names = [f"/layers.{rng.randrange(4)}/Node_{i}" for i in range(40)]
        shown = made_up(names, seed=seed)
        found = network(shown.report, shown.program)
        owner = {}
        for number, block in enumerate(blocks(found, shown.report.nodes)):
            owner.update(dict.fromkeys(range(block.first, block.end), f"block {number}"))
        first = {}
        for at in range(len(found.boxes)):
            first.setdefault(owner.get(at, at), at)
        for edge in found.edges:
            start, end = (owner.get(each, each) for each in (edge.start, edge.end))
            assert first[start] <= first[end]
