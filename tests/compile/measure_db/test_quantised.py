"""Kernels that round to 8 bits: one step off is right, many are wrong, and exact operators stay exact."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from collage.backends.onnxruntime import OnnxRuntime
from collage.check.bound_kernel import KernelSource
from collage.check.reference import evaluate
from collage.check.samples import Samples
from collage.check.store import ValueStore
from collage.frontend.model import Model, import_model
from collage.frontend.random_inputs import random_inputs
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import Array
from collage.kernel.kernel import Call, Kernel
from collage.kernel.options import BuildOptions
from collage.measure_db.results import Measurement, Outcome, Rejection, RejectionKind
from tests.helpers.measure_db.measured import measured_here
from tests.helpers.models import make_model

ROUND = [helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["y"], "round")]
EXACT = [helper.make_node("BitwiseAnd", ["x", "mask"], ["y"], "and")]


class Off(OnnxRuntime):
    """Right, but for so many steps in the first element."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def load(self, artifact: bytes, options: BuildOptions) -> Kernel:
        return _Off(super().load(artifact, options), self.steps)


class _Off(Kernel):
    def __init__(self, kernel: Kernel, steps: int) -> None:
        self.kernel, self.steps = kernel, steps

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        call = self.kernel.bind(inputs, outputs)

        def off() -> None:
            call()
            first = outputs[0].reshape(-1)
            first[0] = first[0] + self.steps if first[0] < 128 else first[0] - self.steps

        return off


def measured(model: Model, steps: int, folder: Path) -> Outcome:
    folder.mkdir(parents=True, exist_ok=True)
    store = ValueStore(folder / "values")
    evaluate(model, random_inputs(model, np.random.default_rng(0)), store)
    subgraph = Subgraph(model, tuple(range(len(model.graph.nodes))))
    return measured_here(KernelSource(subgraph, Off(steps), BuildOptions()), Samples(store))


@pytest.mark.parametrize(("steps", "right"), [(0, True), (1, True), (60, False)])
def test_rounding(steps: int, right: bool, tmp_path: Path) -> None:
    weights = {"scale": np.array(0.02, np.float32), "zero": np.array(128, np.uint8)}
    model = make_model(ROUND, {"x": [4, 64]}, {"y": [4, 64]}, weights, types={"y": TensorProto.UINT8})
    outcome = measured(import_model(model), steps, tmp_path)
    if right:
        assert isinstance(outcome, Measurement)
        assert outcome.max_error <= 0.01
    else:
        assert isinstance(outcome, Rejection)
        assert outcome.kind is RejectionKind.INACCURATE


def test_integers_that_are_not_rounded_stay_exact(tmp_path: Path) -> None:
    types = {"x": TensorProto.UINT8, "y": TensorProto.UINT8}
    model = make_model(EXACT, {"x": [4, 64]}, {"y": [4, 64]}, {"mask": np.array(0x7F, np.uint8)}, types=types)
    assert isinstance(measured(import_model(model), 0, tmp_path), Measurement)
    outcome = measured(import_model(model), 1, tmp_path / "again")
    assert isinstance(outcome, Rejection)
    assert "wrong elements" in outcome.message
