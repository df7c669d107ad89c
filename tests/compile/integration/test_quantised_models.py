"""Quantised models on our own kernels: what lies between integers of 8 bits is one kernel, with no engine near it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import collage
from collage.backends.layout import LayoutTransforms
from collage.backends.onednn import OneDnn
from collage.backends.view import View
from collage.compiler.compile import CompileOptions, compile_model
from collage.frontend.session import reference_run
from tests.helpers.backends.onednn_checks import needs_exact_sums
from tests.helpers.models import make_model

pytestmark = pytest.mark.skipif(not OneDnn().available(), reason=OneDnn().available().reason)


def block() -> onnx.ModelProto:
    """A residual block of ResNet between integers, after a maximum, as quantising tools write it."""
    rng = np.random.default_rng(0)
    numbers: dict[str, Any] = {"zu": np.array(0, np.uint8), "zs": np.array(0, np.int8)}
    numbers |= {f"s{i}": np.array(s, np.float32) for i, s in enumerate((0.02, 0.031, 0.0171, 0.0293))}
    for name, inputs in (("v", 16), ("w", 32)):
        numbers[name] = rng.integers(-127, 127, (32, inputs, 3, 3), np.int8, endpoint=True)
        numbers[f"{name}s"] = (rng.uniform(0.5, 1.5, 32) / (70 * np.sqrt(9 * inputs))).astype(np.float32)
        numbers[f"{name}z"] = np.zeros(32, np.int8)
        numbers[f"{name}b"] = rng.standard_normal(32).astype(np.float32)
    numbers["u"] = rng.integers(-127, 127, (32, 16, 1, 1), np.int8, endpoint=True)
    numbers["us"] = (rng.uniform(0.5, 1.5, 32) / (70 * 4)).astype(np.float32)

    def floats(value: str, scale: str, zero: str, name: str) -> onnx.NodeProto:
        return helper.make_node("DequantizeLinear", [value, scale, zero], [name])

    def weights(name: str, zero: str) -> onnx.NodeProto:
        return helper.make_node("DequantizeLinear", [name, f"{name}s", zero], [f"{name}f"], axis=0)

    def steps(value: str, scale: str, zero: str, name: str) -> onnx.NodeProto:
        return helper.make_node("QuantizeLinear", [value, scale, zero], [name])

    pads = {"pads": [1, 1, 1, 1]}
    nodes = [
        floats("x", "s0", "zu", "xf"),
        helper.make_node("MaxPool", ["xf"], ["p"], kernel_shape=[3, 3], strides=[2, 2], **pads),
        steps("p", "s0", "zu", "pq"),
        floats("pq", "s0", "zu", "pf"),
        *(weights(name, zero) for name, zero in (("v", "vz"), ("w", "wz"), ("u", "vz"))),
        helper.make_node("Conv", ["pf", "vf", "vb"], ["a"], **pads),
        helper.make_node("Relu", ["a"], ["b"]),
        steps("b", "s1", "zu", "bq"),
        floats("bq", "s1", "zu", "bf"),
        helper.make_node("Conv", ["bf", "wf", "wb"], ["c"], **pads),
        steps("c", "s2", "zs", "cq"),
        floats("cq", "s2", "zs", "cf"),
        helper.make_node("Conv", ["pf", "uf"], ["d"]),
        steps("d", "s2", "zs", "dq"),
        floats("dq", "s2", "zs", "df"),
        helper.make_node("Add", ["cf", "df"], ["e"]),
        helper.make_node("Relu", ["e"], ["f"]),
        steps("f", "s3", "zu", "y"),
    ]
    types = {"x": TensorProto.UINT8, "y": TensorProto.UINT8}
    return make_model(nodes, {"x": [1, 16, 20, 20]}, {"y": [1, 32, 10, 10]}, numbers, types=types)


@needs_exact_sums
def test_a_block_without_an_engine(tmp_path: Path) -> None:
    registry = collage.Registry()
    for each in (View(), LayoutTransforms(), OneDnn()):
        registry.register(each)
    options = CompileOptions(db=tmp_path / "db.sqlite", threads=2)
    module = compile_model(block(), options, registry, lambda _: None)
    kernels = [each for each in module.program.launches if each.nodes]
    assert {each.backend for each in kernels} == {"onednn"}
    # A maximum, three convolutions and a sum; nothing in float32 lies between them.
    assert len(kernels) == 5
    for seed in range(4):
        x = np.random.default_rng(seed).integers(0, 255, (1, 16, 20, 20), np.uint8, endpoint=True)
        (wanted,) = reference_run(block(), {"x": x})
        assert np.ptp(wanted) > 20
        off = np.abs(module(x).astype(int) - wanted.astype(int))
        # One step between two layers may become one or two at the end.
        assert off.max() <= 2
        assert np.mean(off > 0) < 0.02
    module.save(tmp_path / "m.collage")
    np.testing.assert_array_equal(collage.load(tmp_path / "m.collage")(x), module(x))
