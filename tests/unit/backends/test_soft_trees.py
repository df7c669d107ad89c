"""Soft trees as a step of a program for tables, beside float64 numpy, on generated graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage.backends.base import UnsupportedError
from collage.backends.tables_kernels.session import TableSession, program_of
from collage.backends.tables_kernels.soft import with_soft_trees
from collage.frontend.messages import parsed
from collage.native.table import table_problem
from tests.helpers.tables import floats, model_of

pytestmark = pytest.mark.skipif(bool(table_problem()), reason=table_problem())

COUNTS = (1, 3, 5, 64, 100, 257, 700)
WIDE, SMALL = 30, 5
"""Categories of a table whose rows are gathered as they are, and of one whose rows are multiplied."""


def generated(seed: int, *, trees: int, nodes: int, leaves: int, targets: int, numbers: int, tables: int) -> Any:
    """A model of codes and numbers, and what it computes."""
    rng = np.random.default_rng(seed)

    def drawn(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    width = 3
    made: dict[str, np.ndarray] = {f"wide{i}": drawn(WIDE, trees * nodes) for i in range(tables)}
    made |= {f"small{i}": drawn(SMALL, width) for i in range(tables)}
    made["weight"] = drawn(numbers + width * tables, trees * nodes)
    made["bias"] = drawn(trees * nodes)
    made["path"] = rng.integers(-1, 2, (trees, nodes, leaves)).astype(np.float32)
    made["bend"], made["value"] = drawn(trees, 1, leaves), drawn(trees, leaves, targets)
    made["added"] = made["value"].sum(1, keepdims=True)
    nodes_of, terms, parts = [], [], ["X"] if numbers else []
    for i in range(tables):
        nodes_of += [
            helper.make_node("Squeeze", [f"C{i}", "one"], [f"c{i}"]),
            helper.make_node("Gather", [f"wide{i}", f"c{i}"], [f"w{i}"]),
            helper.make_node("LabelEncoder", [f"c{i}"], [f"m{i}"], domain="ai.onnx.ml", **_labels()),
            helper.make_node("Gather", [f"small{i}", f"m{i}"], [f"s{i}"]),
        ]
        terms.append(f"w{i}")
        parts.append(f"s{i}")
    if parts:
        nodes_of.append(helper.make_node("Concat", parts, ["joined"], axis=1))
        nodes_of.append(helper.make_node("Gemm", ["joined", "weight", "bias"], ["dense"]))
        terms.append("dense")
    nodes_of += [
        helper.make_node("Sum", terms, ["z"]),
        helper.make_node("Tanh", ["z"], ["node"]),
        helper.make_node("Reshape", ["node", "shape"], ["by tree"]),
        helper.make_node("Transpose", ["by tree"], ["turned"], perm=[1, 0, 2]),
        helper.make_node("MatMul", ["turned", "path"], ["sums"]),
        helper.make_node("Add", ["sums", "bend"], ["bent"]),
        helper.make_node("Tanh", ["bent"], ["leaf"]),
        helper.make_node("MatMul", ["leaf", "value"], ["valued"]),
        helper.make_node("Add", ["valued", "added"], ["of trees"]),
        helper.make_node("ReduceSum", ["of trees", "zero"], ["Y"], keepdims=0),
    ]
    given = [*made.items(), ("shape", np.array([0, trees, nodes])), ("zero", np.array([0])), ("one", np.array([1]))]
    inputs = [floats(f"C{i}", None, 1, kind=TensorProto.INT64) for i in range(tables)]
    inputs += [floats("X", None, numbers)] if numbers else []
    model = model_of(
        nodes_of, inputs, [floats("Y", None, targets)], [numpy_helper.from_array(each, name) for name, each in given]
    )

    def expected(codes: list[np.ndarray], x: np.ndarray) -> np.ndarray:
        m = {name: each.astype(np.float64) for name, each in made.items()}
        rows = np.concatenate(
            [x.astype(np.float64), *(m[f"small{i}"][c[:, 0] % SMALL] for i, c in enumerate(codes))], 1
        )
        z = rows @ m["weight"] + m["bias"] + sum(m[f"wide{i}"][c[:, 0]] for i, c in enumerate(codes))
        node = np.tanh(z).reshape(-1, trees, nodes).transpose(1, 0, 2)
        return np.asarray((np.tanh(node @ m["path"] + m["bend"]) @ m["value"] + m["added"]).sum(0))

    return model, expected


def _labels() -> dict[str, Any]:
    keys = list(range(WIDE))
    return {"keys_int64s": keys, "values_int64s": [each % SMALL for each in keys], "default_int64": 0}


def session(model: onnx.ModelProto) -> TableSession:
    onnx.checker.check_model(model)
    found = with_soft_trees(parsed(model))
    assert found is not None
    assert "Tanh" not in {node.op_type for node in found.graph.node}
    return TableSession(program_of(found), 2)


SIZES = ("trees", "nodes", "leaves", "targets", "numbers", "tables")
SHAPES = [
    (1, 1, 2, 1, 1, 0),
    (100, 15, 16, 1, 14, 3),
    (7, 16, 17, 3, 2, 1),
    (3, 63, 64, 2, 40, 0),
    (30, 20, 33, 1, 0, 2),
]


@pytest.mark.parametrize("sizes", SHAPES)
def test_equal_numpy(sizes: tuple[int, ...]) -> None:
    shape = dict(zip(SIZES, sizes, strict=True))
    model, expected = generated(sum(shape.values()), **shape)
    run = session(model)
    rng = np.random.default_rng(0)
    for count in COUNTS:
        codes = [rng.integers(0, WIDE, (count, 1)) for _ in range(shape["tables"])]
        x = rng.normal(size=(count, shape["numbers"])).astype(np.float32)
        truth = expected(codes, x)
        (found,) = run.run([*codes, *([x] if shape["numbers"] else [])])
        np.testing.assert_allclose(found, truth, rtol=2e-5, atol=2e-6 * shape["trees"] * shape["leaves"])
        (alone,) = run.run([each[-1:] for each in [*codes, *([x] if shape["numbers"] else [])]])
        np.testing.assert_array_equal(alone, found[-1:])  # a row has the same bits alone and among others


def test_numbers_far_away() -> None:
    """tanh is +-1 at infinity, and NaN stays NaN."""
    model, expected = generated(1, trees=5, nodes=3, leaves=4, targets=1, numbers=1, tables=0)
    x = np.array([[1e30], [-1e30], [np.inf], [-np.inf], [300.0], [1e-30]], np.float32)
    (found,) = session(model).run([x])
    np.testing.assert_allclose(found, expected([], x), rtol=1e-5, atol=1e-5)
    assert np.isnan(session(model).run([np.full((7, 1), np.nan, np.float32)])[0]).all()


@pytest.mark.parametrize("change", ["another reader", "keepdims", "constant", "float64"])
def test_other_graphs_are_none(change: str) -> None:
    model, _ = generated(2, trees=3, nodes=3, leaves=4, targets=1, numbers=2, tables=0)
    if change == "another reader":
        model.graph.output.append(floats("leaf", 3, None, 4))
    elif change == "keepdims":
        model.graph.node[-1].attribute[0].i = 1
    elif change == "constant":
        (bend,) = [each for each in model.graph.initializer if each.name == "bend"]
        bend.CopyFrom(numpy_helper.from_array(np.zeros((1, 1, 4), np.float32), "bend"))
    else:
        for each in model.graph.initializer:
            if each.data_type == TensorProto.FLOAT:
                each.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(each).astype(np.float64), each.name))
    assert with_soft_trees(parsed(model)) is None


def test_numbers_of_other_types_are_refused() -> None:
    model, _ = generated(3, trees=3, nodes=3, leaves=4, targets=1, numbers=2, tables=0)
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.DOUBLE
    with pytest.raises(UnsupportedError, match="soft trees of float64"):
        session(model)
