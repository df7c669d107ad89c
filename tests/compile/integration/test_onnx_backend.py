"""The interface of ONNX backends: models and nodes by ``prepare``, ``run_model`` and ``run_node``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import collage.onnx_backend as backend
from collage.errors import InputError, UsageError
from tests.helpers.models import elementwise_net, make_model

X = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
EXPECTED = np.maximum(X, 0) + 2 * np.tanh(X)


def test_prepare_and_run() -> None:
    prepared = backend.prepare(elementwise_net(), "CPU:0", threads=1)
    for inputs in ([X], (X,), X, {"x": X}):
        (y,) = prepared.run(inputs)
        np.testing.assert_allclose(y, EXPECTED, rtol=1e-5, atol=1e-6)
    assert prepared.module({"x": X}).report.threads == 1
    with pytest.raises(InputError, match="2 inputs given, the model takes 1"):
        prepared.run([X, X])


def test_a_module_for_each_shape() -> None:
    model = make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": ["n", 3]}, {"y": ["n", 3]})
    prepared = backend.prepare(model)
    for count in (2, 5, 2):
        x = X.reshape(-1)[: 3 * count].reshape(count, 3)
        (y,) = prepared.run([x])
        np.testing.assert_array_equal(y, np.maximum(x, 0))


def test_run_model_uses_the_measured_placement(tmp_path: Path) -> None:
    (y,) = backend.run_model(elementwise_net(), [X], db=tmp_path / "db.sqlite", backends=["tvm"])
    np.testing.assert_allclose(y, EXPECTED, rtol=1e-5, atol=1e-6)
    assert (tmp_path / "db.sqlite").exists()


def test_run_node() -> None:
    (y,) = backend.run_node(helper.make_node("Relu", ["x"], ["y"]), [X])
    np.testing.assert_array_equal(y, np.maximum(X, 0))
    node = helper.make_node("Split", ["x"], ["a", "b"], axis=1, num_outputs=2)
    found = backend.run_node(node, X, outputs_info=[(X.dtype, (4, 32))] * 2, opset_version=18)
    np.testing.assert_array_equal(np.concatenate(found, 1), X)
    with pytest.raises(InputError, match="2 inputs given, Relu takes 1"):
        backend.run_node(helper.make_node("Relu", ["x"], ["y"]), [X, X])


def test_devices_and_options() -> None:
    assert backend.supports_device("CPU")
    assert not backend.supports_device("CUDA")
    with pytest.raises(UsageError, match="runs on the CPU, not on CUDA"):
        backend.prepare(elementwise_net(), "CUDA")
    with pytest.raises(UsageError, match=r"unknown option: nope\. Valid: .*threads"):
        backend.prepare(elementwise_net(), nope=1)
