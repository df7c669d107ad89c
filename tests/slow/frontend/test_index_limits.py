"""Indices out of range are reported before a run, and kernels never read beside the table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import collage
from collage.errors import InputError
from collage.frontend.read.index_limits import index_limits
from collage.frontend.rewrite.simplify import simplify
from collage.frontend.session import reference_run
from tests.helpers.models import make_model

TABLE = np.random.default_rng(0).standard_normal((10, 4)).astype(np.float32)


def embedding() -> onnx.ModelProto:
    """A model that reads rows of two tables, the second of which is shorter. ``raw`` is calculated with first."""
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
    return make_model(nodes, {"ids": [3], "raw": [3]}, {"y": [3, 4], "others": [1, 3, 1, 1]}, weights, types=integers)


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
                InputError, match=f"ids holds the index {wrong}, which is out of range: its table has 7 rows"
            ):
                each(np.array([0, wrong, 1]), np.array([0, 1, 4]))


def test_nothing_is_read_from_beside_the_table(module: collage.CompiledModule) -> None:
    """Indices that are calculated, and those of a bound call, are not checked before a run."""
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


INDEXING = {
    "Gather": ({"axis": 1}, [3], [5, 3], 7),
    "GatherElements": ({"axis": 0}, [2, 7], [2, 7], 5),
    "GatherND": ({}, [3, 2], [3], (5, 7)),
    "GatherND of a column": ({}, [3, 1], [3, 7], 5),
    "GatherND in a batch": ({"batch_dims": 1}, [5, 1], [5], 7),
    "ScatterElements": ({"axis": 1}, [5, 2], [5, 7], 7),
    "ScatterND": ({}, [3, 2], [5, 7], (5, 7)),
}
"""For each operator the attributes, the shapes of the indices and of the result, and the rows."""
GATHERS, SCATTERS = [*INDEXING][:5], [*INDEXING][5:]


def indexing(names: list[str]) -> onnx.ModelProto:
    """x[5x7] indexed in each of these ways, by inputs of the operators' names."""
    nodes, inputs, outputs = [], {"x": [5, 7]}, {}
    for name in names:
        attributes, shape, result, _ = INDEXING[name]
        inputs[name], outputs[f"{name} result"] = shape, result
        taken = ["x", name]
        if name in SCATTERS:
            taken.append(f"{name} updates")
            inputs[taken[-1]] = shape[:1] if name == "ScatterND" else shape
        nodes.append(helper.make_node(name.split()[0], taken, [f"{name} result"], **attributes))
    return make_model(nodes, inputs, outputs, types=dict.fromkeys(names, TensorProto.INT64))


def valid(name: str, negative: bool) -> np.ndarray:
    """Indices of the rows, each at most once. Some or all count from the end."""
    _, shape, _, rows = INDEXING[name]
    rng = np.random.default_rng(0)
    limits = np.array(rows)
    drawn = np.argsort(rng.random((shape[0], 5)), -1)[:, : shape[1]] if name in SCATTERS[:1] else None
    found = rng.integers(0, limits, shape) if drawn is None else drawn
    if name == "ScatterND":
        found = np.array([[4, 0], [0, 6], [2, 3]])
    return found - limits if negative else np.where(rng.random(shape) < 0.5, found - limits, found)


@pytest.mark.parametrize(
    ("names", "backend"),
    [
        (GATHERS, "tvm"),
        *((names, each) for names in (GATHERS, SCATTERS) for each in ("onnxruntime", "openvino")),
    ],
    ids=["gather-tvm", *(f"{n}-{b}" for n in ("gather", "scatter") for b in ("onnxruntime", "openvino"))],
)
def test_all_valid_indices_are_taken_and_no_others(names: list[str], backend: str, tmp_path: Path) -> None:
    """Negative indices count from the end on every backend. An index out of range is an error in each column."""
    model = indexing(names)
    assert index_limits(simplify(model)) == {name: INDEXING[name][3] for name in names}
    module = collage.compile(model, backends=[backend], db=tmp_path / "db", progress=False, quick=True)
    rng = np.random.default_rng(1)
    floats = {
        info.name: rng.standard_normal([d.dim_value for d in info.type.tensor_type.shape.dim]).astype(np.float32)
        for info in model.graph.input
        if info.name not in names
    }
    for negative in (False, True):
        inputs = floats | {name: valid(name, negative) for name in names}
        for expected, found in zip(reference_run(model, inputs), module.run(inputs).values(), strict=True):
            np.testing.assert_array_equal(found, expected)
    for name in names:
        rows = INDEXING[name][3]
        for column, limit in enumerate(rows if isinstance(rows, tuple) else [rows]):
            for wrong in (limit, -limit - 1, 2**40):
                indices = np.zeros(INDEXING[name][1], np.int64)
                indices[(-1, column)[: indices.ndim]] = wrong
                with pytest.raises(InputError, match=f"{name} holds the index {wrong}.* has {limit} rows"):
                    module.run(inputs | {name: indices})


def test_columns_that_are_moved() -> None:
    """A transposition mixes the columns, so only an index that is wrong in any of them is reported."""
    nodes = [
        helper.make_node("Transpose", ["i"], ["t"], perm=[1, 0]),
        helper.make_node("GatherND", ["x", "t"], ["y"]),
        helper.make_node("Reshape", ["j", "shape"], ["r"]),
        helper.make_node("GatherND", ["x", "r"], ["z"]),
        helper.make_node("Gather", ["x", "j"], ["w"]),
    ]
    model = make_model(
        nodes,
        {"x": [5, 7], "i": [2, 3], "j": [2, 3, 2]},
        {"y": [3], "z": [6], "w": [2, 3, 2, 7]},
        {"shape": np.array([6, 2])},
        types=dict.fromkeys("ij", TensorProto.INT64),
    )
    assert index_limits(simplify(model)) == {"i": 7, "j": 5}


def test_indices_of_a_model_that_an_engine_runs_whole(tmp_path: Path) -> None:
    """Indices are checked before a run, since neither all engines nor the kernels before the suffix check them."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("NonZero", ["rows"], ["places"]),
    ]
    model = make_model(
        nodes,
        {"ids": [3]},
        {"places": [2, "n"]},
        {"table": TABLE},
        types={"ids": TensorProto.INT64, "places": TensorProto.INT64},
    )
    module = collage.compile(model, db=tmp_path / "db", progress=False, quick=True)
    assert module.program.suffix is not None
    module.save(tmp_path / "m.collage")
    for each in (module, collage.load(tmp_path / "m.collage")):
        each(np.array([0, 9, -10]))
        with pytest.raises(InputError, match="ids holds the index 10, which is out of range: its table has 10 rows"):
            each(np.array([0, 10, 1]))


@pytest.mark.parametrize(
    ("first", "limits"), [(TensorProto.BOOL, {}), (TensorProto.INT8, {}), (TensorProto.INT32, {"ids": 10})]
)
def test_casts_that_change_numbers_are_not_looked_through(first: int, limits: dict[str, int]) -> None:
    nodes = [
        helper.make_node("Cast", ["ids"], ["few"], to=first),
        helper.make_node("Cast", ["few"], ["index"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "index"], ["y"]),
    ]
    types = {"ids": TensorProto.INT64}
    assert index_limits(make_model(nodes, {"ids": [3]}, {"y": [3, 4]}, {"table": TABLE}, types=types)) == limits
