"""Which subgraphs of a compiler cut through what it fuses, without anybody else to go on from there."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import onnx
from onnx import helper

from collage.frontend.model import import_model
from collage.search.cuts import needless_cuts
from tests.helpers.models import make_model

ALL = (0, 1, 2, 3, 4)
RUNS = {ALL[a:b] for a, b in combinations(range(6), 2)}


def line(*ops: str, shape: tuple[int, ...] = (4, 8)) -> onnx.ModelProto:
    """Operators one after another."""
    nodes = [helper.make_node(op, [f"v{i}"], [f"v{i + 1}"], f"n{i}") for i, op in enumerate(ops)]
    return make_model(nodes, {"v0": list(shape)}, {f"v{len(ops)}": list(shape)})


FIVE = line("Relu", "Tanh", "Exp", "Sigmoid", "Neg")


def test_parts_of_a_function_that_nobody_else_takes_apart() -> None:
    graph = import_model(FIVE).graph
    assert needless_cuts(graph, RUNS, {ALL}, {ALL}) == RUNS - {ALL}
    assert needless_cuts(graph, RUNS, set(), {(1, 2, 3)}) == set()  # the whole function has no kernel


def test_a_kernel_of_somebody_else_makes_its_ends_worth_a_look() -> None:
    graph = import_model(FIVE).graph
    found = needless_cuts(graph, RUNS, {(0,), (0, 1)}, {ALL})
    assert RUNS - found == {(0,), (1,), (0, 1), (0, 1, 2, 3, 4), (1, 2, 3, 4), (2, 3, 4)}


def test_branches_of_a_function_belong_to_it() -> None:
    """x * tanh(x + 1), in which the sum is read twice."""
    nodes = [
        helper.make_node("Add", ["x", "one"], ["a"], "add"),
        helper.make_node("Tanh", ["a"], ["b"], "tanh"),
        helper.make_node("Mul", ["a", "b"], ["y"], "mul"),
    ]
    model = make_model(nodes, {"x": [4, 8]}, {"y": [4, 8]}, {"one": np.ones(1, np.float32)})
    graph = import_model(model).graph
    own = {(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)}
    assert needless_cuts(graph, own, set(), {(0, 1, 2)}) == own - {(0, 1, 2)}


def test_what_is_computed_once_for_many_is_no_part_of_a_function_of_many() -> None:
    """Fused with the sum, tanh of a row would be computed for each of the rows."""
    nodes = [
        helper.make_node("Tanh", ["row"], ["t"], "tanh"),
        helper.make_node("Add", ["x", "t"], ["y"], "add"),
    ]
    graph = import_model(make_model(nodes, {"x": [64, 8], "row": [1, 8]}, {"y": [64, 8]})).graph
    assert needless_cuts(graph, {(0,), (1,), (0, 1)}, set(), {(0, 1)}) == set()
