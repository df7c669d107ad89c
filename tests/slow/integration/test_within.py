"""Compiles within a tolerance, with the kernels of this machine: what they promise holds on other inputs, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import collage
from collage.check.compare import relative_error
from collage.frontend.session import reference_run
from collage.graph.storage import BF16
from collage.kernel.target import reduced_precisions
from tests.helpers.models import conv_net, elementwise_net, make_model


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One database for all tests of this file."""
    return tmp_path_factory.mktemp("within") / "measurements.sqlite"


needs_bf16 = pytest.mark.skipif(BF16 not in reduced_precisions(), reason="this CPU has no bfloat16 arithmetic")
TOLERANCE = 1e-2


def transformer(tokens: int = 64, width: int = 512) -> onnx.ModelProto:
    """A layer: products for queries, keys and values, attention with one head, and a feed-forward network."""
    rng = np.random.default_rng(0)
    shapes = {"q": (width, width), "k": (width, width), "v": (width, width), "o": (width, width)}
    shapes |= {"up": (width, 4 * width), "down": (4 * width, width)}
    weights: dict[str, Any] = {
        name: (rng.standard_normal(shape) / shape[0] ** 0.5).astype(np.float32) for name, shape in shapes.items()
    }
    weights["root"] = np.array(width**-0.5, np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "q"], ["xq"], "queries"),
        helper.make_node("MatMul", ["x", "k"], ["xk"], "keys"),
        helper.make_node("MatMul", ["x", "v"], ["xv"], "values"),
        helper.make_node("Transpose", ["xk"], ["kt"], "turn", perm=[1, 0]),
        helper.make_node("MatMul", ["xq", "kt"], ["s"], "scores"),
        helper.make_node("Mul", ["s", "root"], ["t"], "scale"),
        helper.make_node("Softmax", ["t"], ["p"], "softmax", axis=-1),
        helper.make_node("MatMul", ["p", "xv"], ["a"], "attend"),
        helper.make_node("MatMul", ["a", "o"], ["b"], "out"),
        helper.make_node("Add", ["b", "x"], ["c"], "residual"),
        helper.make_node("MatMul", ["c", "up"], ["d"], "up"),
        helper.make_node("Relu", ["d"], ["e"], "relu"),
        helper.make_node("MatMul", ["e", "down"], ["f"], "down"),
        helper.make_node("Add", ["f", "c"], ["y"], "add"),
    ]
    return make_model(nodes, {"x": [tokens, width]}, {"y": [tokens, width]}, weights)


def fresh_error(module: Any, model: onnx.ModelProto, seed: int) -> float:
    """The error on inputs that are not among the samples."""
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng([7, seed]).standard_normal(shape).astype(np.float32)
    (expected,) = reference_run(model, {"x": x})
    return relative_error(module(x), expected)


@needs_bf16
def test_a_transformer_runs_in_bfloat16_where_that_is_faster(database: Path, tmp_path: Path) -> None:
    model = transformer()
    options: dict[str, Any] = {
        "db": database,
        "backends": ["onednn", "native", "tvm"],  # none that runs the model whole, which may win if others compute
        "progress": False,
    }
    module = collage.compile(model, tolerance=TOLERANCE, **options)
    regions = module.program.executed
    assert any(region.precision == "bf16" for region in regions)
    errors = module.report.errors
    assert errors is not None
    assert (errors.tolerance, errors.metric, errors.samples) == (TOLERANCE, "max", "12 made-up inputs")
    assert errors.measured is not None
    assert 1e-5 < errors.measured <= TOLERANCE
    assert errors.measured / 3 < errors.predicted < 3 * errors.measured
    assert max(fresh_error(module, model, seed) for seed in range(10)) <= TOLERANCE
    # Each kernel's part of the error adds up in quadrature to the whole.
    assert sum(region.error**2 for region in regions) ** 0.5 == pytest.approx(errors.predicted, rel=1e-6)
    file = tmp_path / "module.collage"
    module.save(file)
    x = np.random.default_rng(1).standard_normal((64, 512)).astype(np.float32)
    loaded = collage.load(file)
    assert np.array_equal(loaded(x), module(x))
    assert loaded.report == module.report
    # Soon the same compile measures nothing, and one without a tolerance is exact.
    for _ in range(4):  # what a compile has measured to the end may change what the next one is led to
        again = collage.compile(model, tolerance=TOLERANCE, **options)
        if not again.report.measurements_made:
            break
    assert again.report.measurements_made == 0
    exact = collage.compile(model, **options)
    assert exact.report.errors is None
    assert not any(region.precision for region in exact.program.regions)
    assert fresh_error(exact, model, 0) < 1e-5


@needs_bf16
def test_a_convolution_net_keeps_the_tolerance_on_samples_that_were_given(database: Path) -> None:
    model = conv_net(32, 32)
    rng = np.random.default_rng(3)
    samples = ({"x": rng.standard_normal((1, 3, 32, 32)).astype(np.float32)} for _ in range(5))
    module = collage.compile(
        model, tolerance=0.03, inputs=samples, db=database, backends=["onednn", "openvino"], progress=False
    )
    errors = module.report.errors
    assert errors is not None
    assert errors.samples == "5 samples that were given"
    assert errors.measured is not None
    assert errors.measured <= 0.03
    offered = {c.backend for c in module.report.candidates if c.precision == "bf16"}
    assert "onednn" in offered


def test_what_has_no_reduced_kernels_stays_exact_and_says_so(database: Path) -> None:
    module = collage.compile(
        elementwise_net(), tolerance=1e-2, db=database, backends=["onednn", "onnxruntime"], progress=False
    )
    assert not any(region.precision for region in module.program.regions)
    assert any("float32 remains" in note for note in module.report.notes)
