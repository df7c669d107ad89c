"""ONNX Runtime's quantisation to 8 bits, as a precision of whole models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import collage
from collage.backends.base import UnsupportedError
from collage.backends.dynamic_quantisation import quantised
from collage.backends.onnxruntime import OnnxRuntime
from collage.compiler.metrics import Metric
from collage.compiler.options import CompileOptions
from collage.frontend.session import reference_run
from collage.graph.storage import BF16
from collage.kernel.options import DYNAMIC_INT8, BuildOptions, Variant
from collage.measure_db.compare import relative_error
from tests.models import conv_net, make_model

RNG = np.random.default_rng(0)
IN_8_BITS = BuildOptions(2, variant=Variant(precision=DYNAMIC_INT8))


def products(width: int = 128) -> onnx.ModelProto:
    """Two products with a relu between them."""
    weights = {name: RNG.standard_normal((width, width)).astype(np.float32) for name in ("a", "b")}
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["s"], "first"),
        helper.make_node("Relu", ["s"], ["t"], "relu"),
        helper.make_node("MatMul", ["t", "b"], ["y"], "second"),
    ]
    return make_model(nodes, {"x": [16, width]}, {"y": [16, width]}, weights)


def test_the_artifact_holds_weights_in_8_bits_and_computes_the_model() -> None:
    model, engine = products(), OnnxRuntime()
    before = model.SerializeToString()
    artifact = engine.codegen_model(model, IN_8_BITS)
    assert model.SerializeToString() == before
    assert len(artifact) < 0.4 * len(engine.codegen_model(model, BuildOptions(2)))
    x = RNG.standard_normal((16, 128)).astype(np.float32)
    y = np.empty_like(x)
    engine.load(artifact, IN_8_BITS).bind([x], [y])()
    (expected,) = reference_run(model, {"x": x})
    assert 1e-4 < relative_error(y, expected) < 0.1


def test_a_model_without_products_of_weights_is_refused() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"], "relu")]
    with pytest.raises(UnsupportedError, match="finds no product with weights"):
        quantised(make_model(nodes, {"x": [4, 4]}, {"y": [4, 4]}, {}))


def test_convolutions_stay_in_float32() -> None:
    try:
        kinds = [node.op_type for node in quantised(conv_net()).graph.node]
    except UnsupportedError:  # it has nothing but convolutions
        return
    assert "Conv" in kinds and "ConvInteger" not in kinds


def test_it_is_offered_where_the_tolerance_allows_8_bits() -> None:
    engine = OnnxRuntime()

    def offered(tolerance: float, metric: str = "max") -> tuple[str, ...]:
        options = CompileOptions(tolerance=tolerance, metric=Metric(metric))
        return tuple(engine.precisions(BuildOptions(precisions=options.precisions)))

    assert [offered(each) for each in (0.0, 1e-3, 1e-2)] == [(), (), (DYNAMIC_INT8,)]
    assert offered(1e-9, "top1") == (DYNAMIC_INT8,)
    assert CompileOptions(tolerance=1e-3).precisions == {BF16}
    assert list(engine.profiles(IN_8_BITS)) == [""]
    assert len(engine.profiles(BuildOptions(2))) > 1


def test_a_compile_measures_it_and_keeps_it_within_the_tolerance(tmp_path: Path) -> None:
    model = products(256)
    options = {"db": tmp_path / "db.sqlite", "backends": ["onnxruntime"], "progress": False}
    module = collage.compile(model, tolerance=0.2, **options)
    (found,) = {c for c in module.report.candidates if c.precision == DYNAMIC_INT8}
    assert found.cost_us is not None or found.least_us is not None, found
    assert found.original
    x = RNG.standard_normal((16, 256)).astype(np.float32)
    (expected,) = reference_run(model, {"x": x})
    assert relative_error(module(x), expected) < 0.2
    module.save(tmp_path / "module.collage")
    assert np.array_equal(collage.load(tmp_path / "module.collage")(x), module(x))
    exact = collage.compile(model, **options)
    assert not any(c.precision for c in exact.report.candidates)
