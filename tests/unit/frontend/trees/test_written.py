"""Files of random trees predict in ONNX Runtime what their libraries define."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from collage.frontend.session import reference_run
from collage.frontend.trees.files import read_model_file, recognise
from tests.unit.frontend.trees import written

SEEDS = range(8)


def predicted(path: Path, rows: Any) -> Any:
    """The first output of the model of a file, for at most 50 rows: ONNX Runtime sums trees in order then."""
    model = read_model_file(path)
    onnx.checker.check_model(model, full_check=True)
    for node in model.graph.node:
        lists = {each.name: np.array(each.ints) for each in node.attribute if each.ints}
        if node.op_type == "TreeEnsemble":  # ONNX Runtime 1.23 takes a root with equal numbers for a leaf
            roots = lists["tree_roots"]
            assert (lists["nodes_truenodeids"][roots] != lists["nodes_falsenodeids"][roots]).all()
    dtype = {onnx.TensorProto.DOUBLE: np.float64, onnx.TensorProto.FLOAT: np.float32}
    kind = dtype[model.graph.input[0].type.tensor_type.elem_type]
    with np.errstate(over="ignore"):
        return reference_run(model, {"X": rows.astype(kind)})[0]


@pytest.mark.parametrize("seed", SEEDS)
def test_lightgbm(tmp_path: Path, seed: int) -> None:
    """Missing values of all kinds, categories, values near zero, bare leaves: equal to the bit."""
    file = written.lightgbm(seed, categorical=seed % 3 > 0)
    (tmp_path / "model").write_bytes(file.data)
    assert recognise(tmp_path / "model") == recognise(file.data) == "LightGBM text"
    rows = written.hostile_rows(seed, file.data)
    np.testing.assert_array_equal(predicted(tmp_path / "model", rows), [file.sums(row)[0] for row in rows])


def test_lightgbm_averages(tmp_path: Path) -> None:
    file = written.lightgbm(1, header="average_output\n")
    (tmp_path / "model").write_bytes(file.data)
    rows = written.hostile_rows(1, file.data)
    np.testing.assert_array_equal(predicted(tmp_path / "model", rows), [file.sums(row)[0] / 4 for row in rows])


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_xgboost(tmp_path: Path, seed: int, binary: bool) -> None:
    """JSON and UBJSON: default directions, categories, pruned nodes, base scores: equal to the bit."""
    file = written.xgboost(seed)
    data = written.ubjson(json.loads(file.data)) if binary else file.data
    (tmp_path / "model").write_bytes(data)
    assert recognise(data) == ("XGBoost UBJSON" if binary else "XGBoost JSON")
    rows = written.hostile_rows(seed, file.data)
    rows[np.isinf(rows) | (np.abs(rows) > 1e38)] = 3.0  # XGBoost refuses infinities
    np.testing.assert_array_equal(predicted(tmp_path / "model", rows), [file.sums(row) for row in rows])


@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize("seed", SEEDS)
def test_catboost(tmp_path: Path, seed: int, targets: int) -> None:
    """NaN below and above all borders, scale and bias. Sums of several targets are rounded to float32 once."""
    file = written.catboost(seed, targets=targets)
    (tmp_path / "model").write_bytes(file.data)
    assert recognise(file.data) == "CatBoost JSON"
    rows = written.hostile_rows(seed, file.data)
    with np.errstate(over="ignore"):
        rows = rows.astype(np.float32)
    found, wanted = predicted(tmp_path / "model", rows), np.array([file.sums(row) for row in rows])
    if targets == 1:
        np.testing.assert_array_equal(found, wanted[:, 0])
    else:
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, wanted, rtol=1e-7, atol=1e-7)


def test_xgboost_without_trees(tmp_path: Path) -> None:
    """A model of XGBoost without trees predicts the base score."""
    file = written.xgboost(0, ())
    (tmp_path / "model").write_bytes(file.data)
    np.testing.assert_array_equal(predicted(tmp_path / "model", np.zeros((3, 4))), [[0.25, -1]] * 3)


def test_a_deep_tree(tmp_path: Path) -> None:
    """A tree of 5,000 nodes on one path is taken, and a deeper one is refused."""
    from collage.errors import ModelError

    for deepest, taken in ((5_000, True), (5_001, False)):
        nodes = range(deepest)
        text = written.lightgbm(0, (1,)).data.decode().replace("num_leaves=1\n", f"num_leaves={deepest + 1}\n")
        fields = {
            "split_feature": [0] * deepest,
            "threshold": list(nodes),
            "decision_type": [0] * deepest,
            "left_child": [~i for i in nodes],
            "right_child": [*range(1, deepest), ~deepest],
            "leaf_value": list(range(deepest + 1)),
        }
        lines = [line for line in text.split("\n") if line.partition("=")[0] not in fields]
        at = lines.index("num_cat=0")
        lines[at:at] = [f"{name}={' '.join(map(str, values))}" for name, values in fields.items()]
        (tmp_path / "model").write_text("\n".join(lines))
        if taken:
            found = predicted(tmp_path / "model", np.array([[-1.0, 0, 0, 0], [4998.5, 0, 0, 0], [1e9, 0, 0, 0]]))
            np.testing.assert_array_equal(found, [0, 4999, 5000])
        else:
            with pytest.raises(ModelError, match="deeper than 5,000"):
                read_model_file(tmp_path / "model")
