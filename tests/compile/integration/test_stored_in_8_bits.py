"""Modules that store values in 8 bits between their kernels: placed within a budget, checked, saved and loaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import collage
from collage.backends.layout import LayoutTransforms
from collage.backends.onednn import OneDnn
from collage.backends.view import View
from collage.check.compare import relative_error
from collage.compiler.compile import CompileOptions, compile_model
from collage.frontend.session import reference_run
from collage.graph.storage import STORED_INT8
from collage.kernel.options import BuildOptions, Variant
from collage.measure.timing.effort import FULL
from collage.measure.worker.process import Workers
from collage.native import NativeKernel, Step
from collage.native.kernel_library import rounding_problem
from tests.helpers.models import make_model

pytestmark = [
    pytest.mark.skipif(bool(rounding_problem()), reason=rounding_problem()),
    pytest.mark.skipif(not OneDnn().available(), reason=OneDnn().available().reason),
]
SHAPE = (1, 16, 12, 12)
TOLERANCE = 0.1
HASTY = replace(FULL, name="hasty", settle_s=0.0, turn_s=0.0)
"""Kernels in float32 are so slow here that few samples show it."""


def network() -> onnx.ModelProto:
    """Two convolutions with a residual, a maximum, a grouped convolution and a mean."""
    rng = np.random.default_rng(0)

    def weights(*shape: int) -> Any:
        return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    numbers = {"u": weights(32, 16, 3, 3), "v": weights(32, 32, 3, 3), "w": weights(32, 8, 3, 3)}
    numbers["b"] = weights(32, 1).reshape(-1)
    nodes = [
        helper.make_node("Conv", ["x", "u", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "v"], ["d"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["d", "r"], ["s"]),
        helper.make_node("Relu", ["s"], ["t"]),
        helper.make_node("MaxPool", ["t"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p", "w", "b"], ["e"], group=4),
        helper.make_node("GlobalAveragePool", ["e"], ["y"]),
    ]
    return make_model(nodes, {"x": list(SHAPE)}, {"y": [1, 32, 1, 1]}, numbers)


class _Repeated(NativeKernel):
    """Computes the same many times."""

    def __init__(self, kernel: Any) -> None:
        super().__init__(kernel.threads)
        self._kernel = kernel

    def steps(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Step]:
        return 60 * [*self._kernel.steps(inputs, outputs)]


class SlowInFloat32(OneDnn):
    """Has kernels that read values of 8 bits, and slow kernels in float32 for everything."""

    def variants(self, subgraph: collage.Subgraph, options: BuildOptions) -> Sequence[Variant]:
        found = super().variants(subgraph, options)
        floats = [each for each in found if not each.precision]
        return [*floats[-2:], *(each for each in found if each.precision == STORED_INT8)]

    def in_place(self, subgraph: collage.Subgraph) -> Sequence[int]:
        return ()  # what is computed many times must not overwrite what it reads

    def load(self, artifact: Any, options: BuildOptions) -> Any:
        found = super().load(artifact, options)
        return found if options.variant.precision else _Repeated(found)


Compiled = tuple[Path, Workers, collage.CompiledModule]


def compiled(folder: Path, workers: Workers, **options: Any) -> collage.CompiledModule:
    registry = collage.Registry()
    for each in (View(), LayoutTransforms(), SlowInFloat32()):
        registry.register(each)
    asked = CompileOptions(db=folder / "db.sqlite", threads=2, effort=HASTY, **options)
    return compile_model(network(), asked, registry, lambda _: None, workers)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compiled]:
    """A module within a tolerance, and what others can be compiled with."""
    folder = tmp_path_factory.mktemp("stored")
    with Workers() as workers:
        yield folder, workers, compiled(folder, workers, tolerance=TOLERANCE, **given(1))


def drawn(seed: int) -> np.ndarray:
    return np.random.default_rng([9, seed]).standard_normal(SHAPE).astype(np.float32)


def given(factor: float) -> dict[str, Any]:
    """Samples of a user's, as options of a compile."""
    samples = [{"x": factor * drawn(100 + seed)} for seed in range(4)]
    return {"samples": samples, "inputs": samples[0]}


def expected(x: np.ndarray) -> np.ndarray:
    (found,) = reference_run(network(), {"x": x})
    return np.asarray(found)


def in_8_bits(module: collage.CompiledModule) -> list[Any]:
    return [each for each in module.program.executed if each.precision == STORED_INT8]


def test_values_are_stored_in_8_bits_and_the_tolerance_holds(made: Compiled) -> None:
    _, _, module = made
    regions = in_8_bits(module)
    assert sum("conv2d" in each.ops for each in regions) >= 2, [
        (each.ops, each.layout) for each in module.program.executed
    ]
    types = module.program.types
    between = {v for each in regions for v in each.outputs} & {v for each in regions for v in each.inputs}
    assert {types[value].dtype for value in between} <= {"uint8", "int8"}
    assert between
    errors = module.report.errors
    assert errors is not None
    assert errors.measured is not None
    assert 1e-5 < errors.measured <= TOLERANCE
    assert all(0 < each.error <= TOLERANCE for each in regions)
    assert "channels-last-u8" in {part for each in regions for part in each.layout.split(" -> ")}
    worst = max(relative_error(module(drawn(seed)), expected(drawn(seed))) for seed in range(10))
    assert 1e-5 < worst <= TOLERANCE


def test_nan_and_infinities_are_answered_as_ever(made: Compiled) -> None:
    _, _, module = made
    assert module.program.is_guarded
    for odd in (np.nan, np.inf):
        x = drawn(0)
        x[0, 1, 2, 3] = odd
        np.testing.assert_array_equal(np.isfinite(module(x)), np.isfinite(expected(x)))


def test_numbers_far_beyond_the_samples_are_not_cut(made: Compiled) -> None:
    """Such a call is ONNX Runtime's, also where a single number is too large; the next one is as fast as ever."""
    _, _, module = made
    assert module.program.limits
    usual = module(drawn(1))
    for factor in (4.0, 1e4):
        large = factor * drawn(1)
        np.testing.assert_array_equal(module(large), expected(large))
    single = drawn(1)
    single[0, 3, 5, 7] = 1e4
    np.testing.assert_array_equal(module(single), expected(single))
    np.testing.assert_array_equal(module(drawn(1)), usual)
    assert 1e-5 < relative_error(usual, expected(drawn(1))) <= TOLERANCE


def test_a_module_is_saved_loaded_and_recalled(made: Compiled) -> None:
    folder, workers, module = made
    module.save(folder / "m.collage")
    loaded = collage.load(folder / "m.collage")
    assert loaded.program.limits == module.program.limits
    for seed in range(3):
        np.testing.assert_array_equal(loaded(drawn(seed)), module(drawn(seed)))
    again = compiled(folder, workers, tolerance=TOLERANCE, **given(1))
    assert again.report.measurements_made == 0
    np.testing.assert_array_equal(again(drawn(5)), module(drawn(5)))


def test_without_samples_nothing_is_stored_in_8_bits(made: Compiled) -> None:
    folder, workers, _ = made
    assert not in_8_bits(compiled(folder, workers, tolerance=TOLERANCE))


def test_without_a_tolerance_nothing_is_in_8_bits(made: Compiled) -> None:
    folder, workers, _ = made
    module = compiled(folder, workers)
    assert {each.precision for each in module.program.executed} == {""}
    assert not any("u8" in each.layout for each in (*module.program.launches, *module.report.candidates))
    assert relative_error(module(drawn(0)), expected(drawn(0))) < 1e-5
