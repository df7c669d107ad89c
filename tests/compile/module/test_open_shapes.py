"""Models whose inputs have open dimensions: placed for one, run in any shapes, and placed for shapes seen often."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import collage
from collage.module.learned import LearnedShapes, frequent_shapes
from tests.helpers.cli.helpers import fails, json_of, succeeds
from tests.helpers.models import make_model

FEW: dict[str, Any] = {"budget_s": 5.0, "progress": False, "threads": 2}


def image_model() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("GlobalAveragePool", ["b"], ["y"]),
    ]
    weights = {"w": rng.standard_normal((8, 3, 3, 3)).astype(np.float32)}
    return make_model(nodes, {"x": ["batch", 3, 16, 16]}, {"y": ["batch", 8, 1, 1]}, weights)


def text_model() -> onnx.ModelProto:
    rng = np.random.default_rng(1)
    nodes = [
        helper.make_node("Add", ["x", "mask"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["b"]),
        helper.make_node("Softmax", ["b"], ["y"], axis=1),
    ]
    weights = {"w": rng.standard_normal((16, 8)).astype(np.float32)}
    inputs: dict[str, list[Any]] = {"x": ["batch", "sequence", 16], "mask": ["batch", "sequence", 1]}
    return make_model(nodes, inputs, {"y": ["batch", "sequence", 8]}, weights)


def agrees(module: Any, model: onnx.ModelProto, **shapes: tuple[int, ...]) -> None:
    rng = np.random.default_rng()
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    np.testing.assert_allclose(module.run(feeds)["y"], wanted, rtol=1e-4, atol=1e-5)


def test_an_open_batch_is_placed_for_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = image_model()
    module = collage.compile(model, **FEW, db=tmp_path / "db")
    assert isinstance(module, collage.ShapedModule)
    assert any("placed for 1 (--batch N" in note for note in module.report.notes)
    module.save(tmp_path / "net.collage")
    loaded = collage.load(tmp_path / "net.collage")
    for each in (module, loaded):
        agrees(each, model, x=(1, 3, 16, 16))
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING and "shaped" in each.name]
    for each in (module, loaded):
        agrees(each, model, x=(5, 3, 16, 16))
    np.testing.assert_array_equal(loaded.bind().inputs["x"].shape, (1, 3, 16, 16))
    strict = collage.compile(model, **FEW, db=tmp_path / "db", strict=True)
    assert isinstance(strict, collage.CompiledModule)


def test_a_batch_that_is_given_is_the_only_one(tmp_path: Path) -> None:
    module = collage.compile(image_model(), **FEW, db=tmp_path / "db", batch=4)
    agrees(module, image_model(), x=(4, 3, 16, 16))
    with pytest.raises(collage.InputError, match="5x3x16x16"):
        module.run(x=np.zeros((5, 3, 16, 16), np.float32))


def test_a_size_has_one_value(tmp_path: Path) -> None:
    path, out = tmp_path / "net.onnx", tmp_path / "net.collage"
    onnx.save_model(text_model(), path)
    words = ("mask has batch = 3, and another input 2",)
    fails(2, "compile", path, "-o", out, "--shape", "x:2x5x16", "--shape", "mask:3x5x1", words=words)
    fails(2, "compile", path, "-o", out, "--batch", 3, "--shape", "x:2x5x16", words=words)
    assert not out.exists()


def test_other_open_dimensions_run_at_once(tmp_path: Path) -> None:
    model = text_model()
    module = collage.compile(model, **FEW, db=tmp_path / "db")
    assert isinstance(module, collage.CompiledModule)
    (note,) = [each for each in module.report.notes if "open dimensions" in each]
    assert "batch" in note and "sequence" in note and "--shape x:1x128x16 --shape mask:1x128x1" in note
    module.save(tmp_path / "net.collage")
    for each in (module, collage.load(tmp_path / "net.collage")):
        for batch, length in ((1, 128), (1, 7), (3, 5)):
            agrees(each, model, x=(batch, length, 16), mask=(batch, length, 1))
    # a size that is given for one input holds for all that name it
    placed = collage.compile(model, **FEW, db=tmp_path / "db", shapes={"x": (2, 6, 16)})
    agrees(placed, model, x=(2, 6, 16), mask=(2, 6, 1))
    with pytest.raises(collage.UsageError, match="no fixed shape"):
        collage.compile(model, **FEW, db=tmp_path / "db", strict=True)


def test_shapes_that_were_seen_often_are_placed(tmp_path: Path) -> None:
    model = text_model()
    path, out, counts = tmp_path / "text.onnx", tmp_path / "text.collage", tmp_path / "shapes.json"
    onnx.save_model(model, str(path))
    options = ("--db", tmp_path / "db", "--budget", "5", "--quiet")
    succeeds("compile", path, "-o", out, *options)
    module = collage.load(out, learn_shapes=counts)
    for length, calls in ((6, 20), (9, 10), (3, 1)):
        for _ in range(calls):
            agrees(module, model, x=(1, length, 16), mask=(1, length, 1))
    assert module.learned is not None
    module.learned.write()
    assert [each["x"] for each in frequent_shapes(counts)] == [(1, 6, 16), (1, 9, 16)]
    succeeds("compile", path, "-o", out, *options, "--shapes", counts)
    found = json_of("show", out, "--json")
    assert [each["inputs"]["x"] for each in found["shapes"]] == [[1, 6, 16], [1, 9, 16]]
    for length in (6, 9, 4):
        agrees(collage.load(out), model, x=(1, length, 16), mask=(1, length, 1))
    fails(2, "compile", path, "-o", out, "--shapes", counts, "--shape", "x:1x1x16", words=("leave out --shape",))
    fails(1, "compile", path, "-o", out, "--shapes", path, words=("no counts of shapes",))


def test_processes_add_their_counts(tmp_path: Path) -> None:
    first, second = (LearnedShapes(tmp_path / "shapes.json") for _ in range(2))
    for each in (first, second, first):
        each.count({"x": (1, 2)})
    first.write()
    second.write()
    assert json.loads((tmp_path / "shapes.json").read_text()) == {"sets": [{"calls": 3, "shapes": {"x": [1, 2]}}]}
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(collage.CollageError, match="no counts of shapes"):
        LearnedShapes(tmp_path / "other.json")


def test_benchmarks_choose_the_same_shapes(tmp_path: Path) -> None:
    path = tmp_path / "image.onnx"
    onnx.save_model(image_model(), str(path))
    found = json_of("bench", path, "--db", tmp_path / "db", "--budget", "3", "--rounds", "1", "--json")
    assert found["shapes"] == {"x": [1, 3, 16, 16]}


def test_doors_show_an_open_batch(tmp_path: Path) -> None:
    module = collage.compile(image_model(), **FEW, db=tmp_path / "db")
    session = collage.InferenceSession(module)
    (given,) = session.get_inputs()
    assert given.shape == ["batch", 3, 16, 16]
    x = np.random.default_rng().standard_normal((3, 3, 16, 16)).astype(np.float32)
    (wanted,) = onnxruntime.InferenceSession(image_model().SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(session.run(None, {"x": x})[0], wanted, rtol=1e-4, atol=1e-5)
