"""``tune_trials`` the whole way through: tuned once, kept, and built again from the record."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

import collage
from collage.backends.tvm import Tvm
from collage.errors import CollageError
from collage.measure_db.database import Database
from tests.helpers.models import elementwise_net, make_model


def conv_relu() -> onnx.ModelProto:
    """One convolution of 1.2 MFLOP, which TVM does not take untuned, with bias and relu."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((16, 16, 3, 3)).astype(np.float32) * 0.1,
        "b": rng.standard_normal(16).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["y"], "relu"),
    ]
    return make_model(nodes, {"x": [1, 16, 16, 16]}, {"y": [1, 16, 16, 16]}, weights)


def compiled(model: onnx.ModelProto, db: Path, trials: int) -> collage.CompiledModule:
    return collage.compile(model, backends=["tvm"], tune_trials=trials, threads=1, db=db, progress=False)


def test_a_tuned_model_is_measured_and_tuned_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    db = tmp_path / "measurements.sqlite"
    with pytest.raises(CollageError, match=r"nn\.conv2d"):
        compiled(conv_relu(), db, 0)
    module = compiled(conv_relu(), db, 2)
    x = np.random.default_rng(1).standard_normal((1, 16, 16, 16)).astype(np.float32)
    session = ort.InferenceSession(conv_relu().SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(module(x), session.run(None, {"x": x})[0], atol=1e-5)
    assert {region.backend for region in module.program.launches} == {"tvm"}
    assert module.report.measurements_made > 0

    def no_search(self: Tvm, *args: object) -> str:
        raise AssertionError("tuned a second time")

    monkeypatch.setattr(Tvm, "tune", no_search)
    again = compiled(conv_relu(), db, 2)
    assert again.report.measurements_made == 0
    assert again.report.measured_us == module.report.measured_us
    np.testing.assert_array_equal(again(x), module(x))

    module.save(tmp_path / "net.collage")
    np.testing.assert_array_equal(collage.load(tmp_path / "net.collage")(x), module(x))


def test_trials_do_not_tune_memory_bound_kernels(tmp_path: Path) -> None:
    """The second compile may time a kernel that lost an early race to its end, but has no settings of its own."""
    db = tmp_path / "measurements.sqlite"
    compiled(elementwise_net(), db, 0)
    with Database(db) as database:
        known = {key for key, _, _ in database.times()}
    assert known
    compiled(elementwise_net(), db, 2)
    with Database(db) as database:
        assert {key for key, _, _ in database.times()} == known
