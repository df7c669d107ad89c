"""`check_real_models` finds models, gives them real inputs, and finds differences. Small models stand for real ones."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import collage
from scripts.lib.realmodels.main import main
from tests.helpers.models import make_model


def which_way_up(seed: int = 0) -> onnx.ModelProto:
    """A classifier of lines of text with the interface of the real one."""
    weights = {
        "w": np.random.default_rng(seed).standard_normal((4, 3, 5, 5)).astype(np.float32),
        "d": np.random.default_rng(seed).standard_normal((4, 2)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], strides=[4, 4]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalMaxPool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "d"], ["m"]),
        helper.make_node("Softmax", ["m"], ["y"]),
    ]
    return make_model(nodes, {"x": ["n", 3, "h", "w_"]}, {"y": ["n", 2]}, weights)


def detector(decay: float = 0.9) -> onnx.ModelProto:
    """Loudness with a memory, under the names that voice-activity detectors have."""
    nodes = [
        helper.make_node("ReduceL2", ["input"], ["loud"], axes=[1], keepdims=1),
        helper.make_node("Mul", ["state", "decay"], ["old"]),
        helper.make_node("Add", ["old", "loud"], ["stateN"]),
        helper.make_node("ReduceMean", ["stateN"], ["mean"], axes=[0, 2], keepdims=0),
        helper.make_node("Sigmoid", ["mean"], ["flat"]),
        helper.make_node("Reshape", ["flat", "shape"], ["output"]),
    ]
    weights = {"decay": np.array(decay, np.float32), "shape": np.array([-1, 1])}
    inputs = {"input": ["n", "l"], "state": [2, "n", 128]}
    return make_model(nodes, inputs, {"output": ["n", 1], "stateN": [2, "n", 128]}, weights, opset=13)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A wheel with a model in it, and one beside it."""
    with zipfile.ZipFile(tmp_path / "reader-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("reader/models/up.onnx", which_way_up().SerializeToString())
        wheel.writestr("reader/__init__.py", "")
    (tmp_path / "voices").mkdir()
    onnx.save(detector(), tmp_path / "voices" / "loud.onnx")
    return tmp_path


ARGUMENTS = ("--quick", "--sizes", "1", "--backends", "onnxruntime,tvm", "--db")


def test_models_that_agree(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(folder), *ARGUMENTS, str(folder / "db.sqlite")]) == 0
    table = capsys.readouterr().out
    assert "| reader/up | 1x3x48x192 |" in table
    assert "| voices/loud | 1x576, 2x1x128 |" in table
    assert table.count("| ok |") == 2


@pytest.mark.parametrize(("good", "bad"), [(which_way_up(), which_way_up(1)), (detector(), detector(0.89))])
def test_a_model_that_disagrees(
    good: onnx.ModelProto, bad: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The detector's first window is right: only the state that it leaves shows what is wrong."""
    compile = collage.compile
    monkeypatch.setattr(collage, "compile", lambda _, **options: compile(bad, **options))
    onnx.save(good, tmp_path / "net.onnx")
    assert main([str(tmp_path / "net.onnx"), *ARGUMENTS, str(tmp_path / "db.sqlite")]) == 1
