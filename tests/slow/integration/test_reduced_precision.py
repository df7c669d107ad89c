"""Kernels of reduced precision in whole modules: measured, placed with their conversions, checked, saved and loaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

import collage
from collage.backends.layout import LayoutTransforms
from collage.backends.native import Native
from collage.backends.onednn import OneDnn
from collage.backends.view import View
from collage.compiler.compile import CompileOptions, compile_model
from collage.graph.storage import BF16, INT8
from collage.kernel.options import BuildOptions, Variant
from collage.kernel.target import reduced_precisions
from collage.measure.worker.process import Workers
from collage.native import NativeKernel, Step
from collage.native.kernel_library import rounding_problem
from collage.search.candidate import Candidate
from collage.search.candidates import candidates_of
from collage.search.errors import ErrorModel
from tests.helpers.models import make_model

pytestmark = [
    pytest.mark.skipif(BF16 not in reduced_precisions(), reason="this processor has no bfloat16"),
    pytest.mark.skipif(not OneDnn().available(), reason=OneDnn().available().reason),
    pytest.mark.skipif(not Native().available(), reason=Native().available().reason),
]
_workers: list[Workers] = []


@pytest.fixture(scope="module", autouse=True)
def workers() -> Iterator[None]:
    """One for all compiles: most of a start is importing TVM."""
    with Workers() as kept:
        _workers.append(kept)
        yield


def network() -> onnx.ModelProto:
    """A block with a residual, a pooling, a concatenation, and a product at its end."""
    rng = np.random.default_rng(0)

    def weights(*shape: int) -> Any:
        return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    numbers = {"w": weights(32, 3, 3, 3), "v": weights(32, 32, 3, 3), "u": weights(64, 10)}
    numbers |= {"b": weights(32), "shape": np.array([1, 64])}
    pads = {"pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], **pads),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "v"], ["d"], **pads),
        helper.make_node("Add", ["d", "r"], ["s"]),
        helper.make_node("MaxPool", ["s"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Concat", ["p", "p2"], ["q"], axis=1),
        helper.make_node("Sigmoid", ["p"], ["p2"]),
        helper.make_node("GlobalAveragePool", ["q"], ["m"]),
        helper.make_node("Reshape", ["m", "shape"], ["f"]),
        helper.make_node("MatMul", ["f", "u"], ["y"]),
    ]
    nodes[5], nodes[6] = nodes[6], nodes[5]
    return make_model(nodes, {"x": [1, 3, 12, 12]}, {"y": [1, 10]}, numbers)


class _Reduced:
    """Offers nothing but reduced variants."""

    def variants(self, subgraph: collage.Subgraph, options: BuildOptions) -> Sequence[Variant]:
        found: Sequence[Variant] = super().variants(subgraph, options)  # type: ignore[misc]
        return [each for each in found if each.precision]


class ReducedOneDnn(_Reduced, OneDnn):
    """Without its convolutions in 8 bits."""

    def variants(self, subgraph: collage.Subgraph, options: BuildOptions) -> Sequence[Variant]:
        return [each for each in super().variants(subgraph, options) if each.precision == BF16]


class ReducedNative(_Reduced, Native):
    pass


def compiled(folder: Path, *backends: collage.Backend, tolerance: float = 0.0) -> collage.CompiledModule:
    registry = collage.Registry()
    for each in (View(), LayoutTransforms(), *backends):
        registry.register(each)
    options = CompileOptions(db=folder / "db.sqlite", threads=2, tolerance=tolerance)
    return compile_model(network(), options, registry, lambda _: None, _workers[-1])


def error_of(module: Any) -> float:
    """The largest error on a few inputs, as a part of the largest output."""
    session = ort.InferenceSession(network().SerializeToString(), providers=["CPUExecutionProvider"])
    worst = 0.0
    for seed in range(4):
        x = np.random.default_rng(seed).standard_normal((1, 3, 12, 12)).astype(np.float32)
        (expected,) = session.run(None, {"x": x})
        worst = max(worst, float(np.abs(module(x) - expected).max() / np.abs(expected).max()))
    return worst


def check_nan(module: Any) -> None:
    """Guards find NaN in what is stored as bfloat16, too."""
    x = np.ones((1, 3, 12, 12), np.float32)
    x[0, 1, 2, 3] = np.nan
    session = ort.InferenceSession(network().SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(np.isnan(module(x)), np.isnan(session.run(None, {"x": x})[0]))


@pytest.fixture
def placed_freely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of reduced precision are placed without an error budget, too."""

    def without_a_budget(*about: Any) -> list[Candidate]:
        *others, _ = about
        return candidates_of(*others, ErrorModel())

    monkeypatch.setattr("collage.compiler.placing.candidates_of", without_a_budget)


@pytest.mark.usefixtures("placed_freely")
def test_a_module_of_reduced_kernels(tmp_path: Path) -> None:
    module = compiled(tmp_path, ReducedOneDnn(), ReducedNative(), tolerance=5e-2)
    launches = module.program.launches
    kernels = [each for each in launches if each.nodes]
    assert {each.precision for each in kernels} == {BF16}, [(each.ops, each.layout) for each in kernels]
    assert any(each.is_transform and "bf16" in each.layout for each in launches)
    assert 1e-5 < error_of(module) < 5e-2
    check_nan(module)
    again = compiled(tmp_path, ReducedOneDnn(), ReducedNative(), tolerance=5e-2)
    assert again.report.measurements_made == 0
    module.save(tmp_path / "m.collage")
    loaded = collage.load(tmp_path / "m.collage")
    x = np.random.default_rng(7).standard_normal((1, 3, 12, 12)).astype(np.float32)
    np.testing.assert_array_equal(loaded(x), module(x))
    assert [each.precision for each in loaded.program.launches] == [each.precision for each in launches]


def test_nothing_is_reduced_that_is_not_allowed(tmp_path: Path) -> None:
    module = compiled(tmp_path, OneDnn(), Native())
    assert {each.precision for each in module.program.launches} == {""}
    assert not any("bf16" in each.layout for each in (*module.program.launches, *module.report.candidates))
    assert error_of(module) < 1e-5


class WithoutProducts(OneDnn):
    def variants(self, subgraph: collage.Subgraph, options: BuildOptions) -> Sequence[Variant]:
        found = super().variants(subgraph, options)
        return [] if any(node.op == "matmul" for node in subgraph.operators) else found


class In8Bits(Native):
    def variants(self, subgraph: collage.Subgraph, options: BuildOptions) -> Sequence[Variant]:
        return [each for each in super().variants(subgraph, options) if each.precision == INT8]


@pytest.mark.usefixtures("placed_freely")
def test_a_module_with_a_product_in_8_bits(tmp_path: Path) -> None:
    backends = WithoutProducts(), In8Bits()
    module = compiled(tmp_path, *backends, tolerance=5e-2)
    products = [each for each in module.program.launches if "matmul" in each.ops]
    assert [(each.backend, each.precision) for each in products] == [("native", INT8)]
    assert 1e-5 < error_of(module) < 5e-2
    check_nan(module)
    assert compiled(tmp_path, *backends, tolerance=5e-2).report.measurements_made == 0
    module.save(tmp_path / "m.collage")
    loaded = collage.load(tmp_path / "m.collage")
    x = np.random.default_rng(7).standard_normal((1, 3, 12, 12)).astype(np.float32)
    np.testing.assert_array_equal(loaded(x), module(x))


class _Repeated(NativeKernel):
    """Computes the same many times."""

    def __init__(self, kernel: Any) -> None:
        super().__init__(kernel.threads)
        self._kernel = kernel

    def steps(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Step]:
        return 30 * [*self._kernel.steps(inputs, outputs)]


class SlowInFloat32(OneDnn):
    """Has convolutions in 8 bits, and slow kernels in float32 for everything."""

    def variants(self, subgraph: collage.Subgraph, options: BuildOptions) -> Sequence[Variant]:
        return [each for each in super().variants(subgraph, options) if each.precision in ("", INT8)]

    def in_place(self, subgraph: collage.Subgraph) -> Sequence[int]:
        return ()  # what is computed many times must not overwrite what it reads

    def load(self, artifact: Any, options: BuildOptions) -> Any:
        found = super().load(artifact, options)
        return found if options.variant.precision else _Repeated(found)


@pytest.mark.skipif(bool(rounding_problem()), reason=rounding_problem())
def test_convolutions_in_8_bits_within_a_budget(tmp_path: Path) -> None:
    """Their errors are measured and charged, and the budget that they have to keep holds on other inputs, too."""
    module = compiled(tmp_path, SlowInFloat32(), tolerance=5e-2)
    regions = [each for each in module.program.executed if each.precision]
    assert [(each.backend, each.precision) for each in regions] == [("onednn", INT8)]
    errors = module.report.errors
    assert errors is not None
    assert errors.measured is not None
    assert 1e-5 < errors.measured <= 5e-2
    assert 0 < regions[0].error <= 5e-2
    assert 1e-5 < error_of(module) < 5e-2
    check_nan(module)
    assert compiled(tmp_path, SlowInFloat32(), tolerance=5e-2).report.measurements_made == 0
    module.save(tmp_path / "m.collage")
    loaded = collage.load(tmp_path / "m.collage")
    x = np.random.default_rng(7).standard_normal((1, 3, 12, 12)).astype(np.float32)
    np.testing.assert_array_equal(loaded(x), module(x))
    assert {each.precision for each in compiled(tmp_path, SlowInFloat32()).program.executed} == {""}
