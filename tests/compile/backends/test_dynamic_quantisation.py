"""ONNX Runtime's quantisation to 8 bits, as a precision of whole models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import collage
import collage.backends.onnxruntime
from collage.backends.dynamic_quantisation import quantised
from collage.backends.onnxruntime import OnnxRuntime
from collage.check.compare import relative_error
from collage.check.metrics import Metric
from collage.compiler.task import CompileOptions
from collage.frontend.session import reference_run
from collage.graph.storage import BF16, FP16, TF32
from collage.kernel.options import DYNAMIC_INT8, BuildOptions, Variant
from collage.report.report import CandidateReport
from tests.helpers.backends.onednn_checks import needs_exact_sums
from tests.helpers.models import conv_net, make_model

RNG = np.random.default_rng(0)
IN_8_BITS = BuildOptions(2, variant=Variant(precision=DYNAMIC_INT8))


def products(width: int = 128, *, of_tokens: bool = False) -> onnx.ModelProto:
    """Two products with a relu between them, of numbers or of rows of a table."""
    weights = {name: RNG.standard_normal((width, width)).astype(np.float32) for name in ("a", "b")}
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["s"], "first"),
        helper.make_node("Relu", ["s"], ["t"], "relu"),
        helper.make_node("MatMul", ["t", "b"], ["y"], "second"),
    ]
    if not of_tokens:
        return make_model(nodes, {"x": [16, width]}, {"y": [16, width]}, weights)
    weights["table"] = RNG.standard_normal((50, width)).astype(np.float32)
    nodes.insert(0, helper.make_node("Gather", ["table", "ids"], ["x"], "embed"))
    found = make_model(nodes, {"ids": [16]}, {"y": [16, width]}, weights)
    found.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    return found


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


def test_convolutions_stay_in_float32() -> None:
    kinds = [node.op_type for node in quantised(conv_net()).graph.node]
    assert "Conv" in kinds and "ConvInteger" not in kinds
    assert "MatMulInteger" in kinds


def test_it_is_offered_where_the_tolerance_allows_8_bits_and_sums_are_exact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = OnnxRuntime()

    def offered(tolerance: float, metric: str = "max") -> tuple[str, ...]:
        options = CompileOptions(tolerance=tolerance, metric=Metric(metric))
        return tuple(engine.precisions(BuildOptions(precisions=options.precisions)))

    monkeypatch.setattr(collage.backends.onnxruntime, "has_exact_int8_sums", lambda: False)
    assert offered(1e-2) == ()
    monkeypatch.setattr(collage.backends.onnxruntime, "has_exact_int8_sums", lambda: True)
    assert [offered(each) for each in (0.0, 1e-3, 1e-2)] == [(), (), (DYNAMIC_INT8,)]
    assert offered(1e-9, "top1") == (DYNAMIC_INT8,)
    assert CompileOptions(tolerance=1e-3).precisions == {BF16, FP16, TF32}
    assert list(engine.profiles(IN_8_BITS)) == [""]
    assert len(engine.profiles(BuildOptions(2))) > 1


@needs_exact_sums
def test_a_compile_measures_it_and_keeps_it_within_the_tolerance(tmp_path: Path) -> None:
    model = products(256, of_tokens=True)
    options: dict[str, Any] = {"db": tmp_path / "db.sqlite", "backends": ["onnxruntime"], "progress": False}
    module = collage.compile(model, tolerance=0.2, **options)
    found = in_8_bits(module)
    assert found.cost_us is not None or found.least_us is not None, found.reason
    assert found.original
    ids = RNG.integers(0, 50, 16)
    (expected,) = reference_run(model, {"ids": ids})
    assert relative_error(module(ids), expected) < 0.2
    module.save(tmp_path / "module.collage")
    assert np.array_equal(collage.load(tmp_path / "module.collage")(ids), module(ids))
    exact = collage.compile(model, **options)
    assert not any(c.precision for c in exact.report.candidates)


@needs_exact_sums
def test_it_is_refused_where_one_large_input_would_cost_all_others_their_digits(tmp_path: Path) -> None:
    module = collage.compile(
        products(), tolerance=0.2, db=tmp_path / "db.sqlite", backends=["onnxruntime"], progress=False
    )
    assert "outliers" in in_8_bits(module).reason
    assert not any(region.precision for region in module.program.executed)


def in_8_bits(module: collage.CompiledModule) -> CandidateReport:
    """The candidate that runs the model in 8 bits."""
    (found,) = {c for c in module.report.candidates if c.precision == DYNAMIC_INT8}
    return found
