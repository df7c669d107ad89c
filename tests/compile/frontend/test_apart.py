"""Models whose large weights are in files."""

from __future__ import annotations

import errno
import gc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage.backends.onnxruntime import OnnxRuntime
from collage.errors import CollageError, ModelError
from collage.frontend.engine_models import in_one_piece
from collage.frontend.model import from_simplified, import_model
from collage.frontend.model_artifacts import artifact_of
from collage.frontend.read import apart
from collage.frontend.read.apart import (
    filled,
    has_files,
    load_model,
    moved_out,
    save_model,
)
from collage.frontend.read.load import load_onnx
from collage.frontend.read.weights import WeightFiles, array_of, forget_borrowed, is_apart
from collage.frontend.rewrite.simplify import simplify
from collage.frontend.session import reference_run
from collage.kernel.frames import Framed
from collage.kernel.model_artifact import hashed, joined, model_artifact, weights_of
from collage.kernel.options import BuildOptions
from tests.helpers.apart import all_apart
from tests.helpers.models import conv_net, make_model

__all__ = ["all_apart"]
pytestmark = pytest.mark.usefixtures("all_apart")

LARGE = ("w1", "w2", "d")


def weights(model: onnx.ModelProto) -> dict[str, Any]:
    return {tensor.name: np.array(array_of(tensor)) for tensor in model.graph.initializer}


def same_weights(one: onnx.ModelProto, other: onnx.ModelProto) -> bool:
    ours, theirs = weights(one), weights(other)
    return ours.keys() == theirs.keys() and all(
        (a.dtype, a.shape) == (theirs[n].dtype, theirs[n].shape) and a.tobytes() == theirs[n].tobytes()
        for n, a in ours.items()
    )


def test_large_weights_are_in_a_file_and_nothing_else_changes() -> None:
    model = conv_net()
    before = model.SerializeToString()
    with WeightFiles() as files:
        found = moved_out(model, files)
        assert {t.name for t in found.graph.initializer if is_apart(t)} == set(LARGE)
        assert found.ByteSize() < model.ByteSize() / 2
        assert same_weights(found, model)
        assert filled(found) == model
        assert model.SerializeToString() == before
        array = array_of(found.graph.initializer[0])
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    gc.collect()
    np.testing.assert_array_equal(array, numpy_helper.to_array(model.graph.initializer[0]))


def test_a_file_with_external_data_is_read_piece_by_piece(tmp_path: Path) -> None:
    model = conv_net()
    path = tmp_path / "model.onnx"
    onnx.save_model(conv_net(), path, save_as_external_data=True, location="w.bin", size_threshold=16)
    with WeightFiles() as files:
        found = load_onnx(path, files)
        assert {t.name for t in found.graph.initializer if is_apart(t)} == set(LARGE)
        assert all(t.data_location == TensorProto.DEFAULT for t in found.graph.initializer if not is_apart(t))
        assert same_weights(found, model)
    data = (tmp_path / "w.bin").read_bytes()
    (tmp_path / "w.bin").write_bytes(data[: len(data) // 2])
    with WeightFiles() as files, pytest.raises(ModelError, match=r"the weights beside .* cannot be read"):
        load_onnx(path, files)
    (tmp_path / "w.bin").unlink()
    with WeightFiles() as files, pytest.raises(ModelError, match=r"the weights beside .* cannot be read"):
        load_onnx(path, files)


def test_a_full_disk_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: Any, data: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(apart, "_write", full)
    with WeightFiles() as files, pytest.raises(CollageError, match=r"No space left on device.*TMPDIR"):
        load_onnx(conv_net(), files)


def test_saved_models_share_the_file(tmp_path: Path) -> None:
    with WeightFiles() as files:
        model = moved_out(conv_net(), files)
        save_model(model, tmp_path / "one.onnx")
        save_model(model, tmp_path / "two.onnx")
        (beside,) = tmp_path.glob("*.weights")
        assert beside.stat().st_nlink == 2
    found = load_model(tmp_path / "one.onnx")
    assert same_weights(found, conv_net())
    assert load_model(tmp_path / "two.onnx") == found
    apart.check_model(found)
    found.graph.node[0].input.append("nothing")
    with pytest.raises(onnx.checker.ValidationError):
        apart.check_model(found)
    del found.graph.node[0].input[-1]
    x = {"x": np.ones((1, 3, 16, 16), np.float32)}
    expected = reference_run(conv_net(), x)[0]
    np.testing.assert_allclose(reference_run(found, x)[0], expected, rtol=1e-5, atol=1e-6)
    forget_borrowed()
    assert not has_files(found)


def test_simplified_and_imported_models_have_the_same_numbers() -> None:
    with WeightFiles() as files:
        simple = simplify(load_onnx(conv_net(), files))
        assert has_files(simple)
        found, expected = from_simplified(simple), import_model(conv_net())
        assert found.graph.nodes == expected.graph.nodes
        for value, array in expected.graph.constants.items():
            np.testing.assert_array_equal(found.graph.constants[value], array)
        constants = dict(found.graph.constants)
    gc.collect()
    for value, array in expected.graph.constants.items():
        np.testing.assert_array_equal(constants[value], array)


def test_artifacts_of_models() -> None:
    small = artifact_of(conv_net())
    assert isinstance(small, bytes)
    with WeightFiles() as files:
        model = moved_out(conv_net(), files)
        found = artifact_of(model)
    assert isinstance(found, Framed)
    assert len(found.arrays) == 1 + len(LARGE)
    assert onnx.load_model_from_string(in_one_piece(found)) == conv_net()
    again = model_artifact(joined(found))
    assert isinstance(again, Framed)
    for name, array in weights_of(again).items():
        np.testing.assert_array_equal(array, weights(conv_net())[name])
    assert hashed(again).hexdigest() == hashed(found).hexdigest() != hashed(small).hexdigest()


def test_weights_that_nothing_reads_are_left_out_of_artifacts() -> None:
    model = conv_net()
    model.graph.initializer.append(numpy_helper.from_array(np.ones((64, 64), np.float32), "unread"))
    with WeightFiles() as files:
        found = artifact_of(moved_out(model, files))
    assert weights_of(found).keys() == set(LARGE)
    x = np.ones((1, 3, 16, 16), np.float32)
    (given,) = OnnxRuntime().session(found, BuildOptions()).run([x])
    np.testing.assert_allclose(given, reference_run(model, {"x": x})[0], rtol=1e-5, atol=1e-6)


def test_weights_of_branches_stay_with_the_model() -> None:
    rng = np.random.default_rng(0)

    def branch(name: str) -> onnx.GraphProto:
        own = numpy_helper.from_array(rng.standard_normal((16, 40)).astype(np.float32), "own")
        node = helper.make_node("MatMul", ["x", "own"], ["out"], f"{name} product")
        info = helper.make_tensor_value_info("out", TensorProto.FLOAT, [4, 40])
        return helper.make_graph([node], name, [], [info], [own])

    nodes = [
        helper.make_node("Shape", ["x"], ["extents"]),
        helper.make_node("If", ["c"], ["y"], then_branch=branch("then"), else_branch=branch("else")),
        helper.make_node("MatMul", ["y", "w"], ["z"]),
    ]
    weights = {"w": rng.standard_normal((40, 40)).astype(np.float32)}
    model = make_model(
        nodes,
        {"x": [4, 16], "c": []},
        {"z": [4, 40], "extents": [2]},
        weights,
        types={"c": TensorProto.BOOL, "extents": TensorProto.INT64},
    )
    x = rng.standard_normal((4, 16)).astype(np.float32)
    with WeightFiles() as files:
        simple = simplify(load_onnx(model, files))
        assert has_files(simple)
        for holds in (True, False):
            feeds = {"x": x, "c": np.array(holds)}
            found, expected = reference_run(simple, feeds), reference_run(model, feeds)
            np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("given", ["bytes", "a file"])
def test_malformed_weights_are_no_traceback(tmp_path: Path, given: str) -> None:
    lying, nowhere = conv_net(), conv_net()
    lying.graph.initializer[0].dims[0] = 1 << 30
    nowhere.graph.initializer[0].ClearField("raw_data")
    nowhere.graph.initializer[0].data_location = TensorProto.EXTERNAL
    for model in (lying, nowhere):
        source: Any = model.SerializeToString()
        if given == "a file":
            source = tmp_path / "model.onnx"
            source.write_bytes(model.SerializeToString())
        with WeightFiles() as files, pytest.raises(ModelError):
            simplify(load_onnx(source, files))
