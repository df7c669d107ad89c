"""Indices out of range: told before a run, and never read from beside the table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import collage
from collage.errors import InputError
from collage.frontend.index_limits import index_limits
from collage.frontend.session import reference_run
from collage.frontend.simplify import simplify
from tests.models import make_model

TABLE = np.random.default_rng(0).standard_normal((10, 4)).astype(np.float32)


def embedding() -> onnx.ModelProto:
    """Rows of two tables, the second of which is shorter; ``raw`` is calculated with first."""
    nodes = [
        helper.make_node("Unsqueeze", ["ids", "axis"], ["column"]),
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("Gather", ["short", "column"], ["others"], axis=1),
        helper.make_node("Mul", ["raw", "two"], ["doubled"]),
        helper.make_node("Gather", ["table", "doubled"], ["more"]),
        helper.make_node("Add", ["rows", "more"], ["y"]),
    ]
    weights = {
        "table": TABLE,
        "short": np.ones((1, 7, 1), np.float32),
        "axis": np.array([1]),
        "two": np.array(2),
    }
    integers = dict.fromkeys(("ids", "raw"), TensorProto.INT64)
    return make_model(
        nodes, {"ids": [3], "raw": [3]}, {"y": [3, 4], "others": [1, 3, 1, 1]}, weights, types=integers
    )


def test_the_smallest_table_counts_and_arithmetic_is_not_looked_through() -> None:
    assert index_limits(simplify(embedding())) == {"ids": 7}


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> collage.CompiledModule:
    path = tmp_path_factory.mktemp("db") / "db.sqlite"
    return collage.compile(embedding(), backends=["tvm"], db=path, progress=False)


def test_an_index_out_of_range_is_an_error(module: collage.CompiledModule, tmp_path: Path) -> None:
    module.save(tmp_path / "m.collage")
    for each in (module, collage.load(tmp_path / "m.collage")):
        y, others = each(np.array([0, 6, -7]), np.array([0, 1, 4]))
        np.testing.assert_allclose(y, TABLE[[0, 6, 3]] + TABLE[[0, 2, 8]], rtol=1e-6)
        assert others.shape == (1, 3, 1, 1)
        for wrong in (7, -8, 2**40):
            with pytest.raises(
                InputError, match=f"ids holds the index {wrong}, but what it indexes has 7 rows"
            ):
                each(np.array([0, wrong, 1]), np.array([0, 1, 4]))


def test_nothing_is_read_from_beside_the_table(module: collage.CompiledModule) -> None:
    """Where indices are calculated, or a call is bound, nobody has looked at them."""
    far = 2**40
    y, _ = module(np.array([0, 1, 2]), np.array([far, -far, 4]))
    np.testing.assert_allclose(y[0], TABLE[0] + TABLE[9], rtol=1e-6)
    np.testing.assert_allclose(y[2], TABLE[2] + TABLE[8], rtol=1e-6)
    assert np.isfinite(y).all()
    call = module.bind()
    call.inputs["ids"][:] = [far, 1, -far]
    call.inputs["raw"][:] = 0
    call()
    assert np.isfinite(call.outputs["y"]).all()


def wandering(op: str, index: list[int]) -> onnx.ModelProto:
    node = helper.make_node(op, ["x", "i"], ["y"])
    kinds = {"i": TensorProto.INT64}
    return make_model([node], {"x": [3, 4], "i": [*index]}, {"y": [2, 4]}, types=kinds)


FAR = 2**40


@pytest.mark.parametrize(
    ("model", "near", "far"),
    [
        (wandering("GatherElements", [2, 4]), np.tile([[-1], [1]], (1, 4)), np.full((2, 4), FAR)),
        (wandering("GatherND", [2, 1]), np.array([[2], [-3]]), np.array([[FAR], [-FAR]])),
    ],
    ids=["GatherElements", "GatherND"],
)
def test_nothing_is_read_from_beside_the_data(
    model: onnx.ModelProto, near: np.ndarray, far: np.ndarray, tmp_path: Path
) -> None:
    module = collage.compile(model, backends=["tvm"], db=tmp_path / "db.sqlite", progress=False, quick=True)
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    (expected,) = reference_run(model, {"x": x, "i": near})
    np.testing.assert_array_equal(module(x, near), expected)
    call = module.bind()
    call.inputs["x"][:] = x
    call.inputs["i"][:] = far
    call()
    assert np.isin(call.outputs["y"], x).all()
