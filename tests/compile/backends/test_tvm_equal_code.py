"""Machine code of TVM is made once for equal functions, whatever their constants are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage.backends.tvm import Tvm
from collage.backends.tvm_codegen import build
from collage.frontend.model import Model, import_model
from collage.frontend.subgraph import Subgraph
from collage.kernel.options import BuildOptions
from tests.backends_for_tests import onnx_model
from tests.tvm_functions import aligned


def scaled(factor: np.ndarray, *, shifted: bool = False) -> Model:
    """x * factor, or x + factor, and its hyperbolic tangent."""
    kind = ((4, 8), TensorProto.FLOAT)
    nodes = [
        helper.make_node("Add" if shifted else "Mul", ["x", "factor"], ["a"], "first"),
        helper.make_node("Tanh", ["a"], ["y"], "second"),
    ]
    model = onnx_model(nodes, {"x": kind}, {"y": kind})
    model.graph.initializer.append(numpy_helper.from_array(factor, "factor"))
    return import_model(model)


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each module that TVM builds; nothing is known at first."""
    made: list[int] = []
    real: Callable[..., Any] = build._build

    def counting(*arguments: Any) -> Any:
        made.append(1)
        return real(*arguments)

    monkeypatch.setattr(build, "_build", counting)
    build._code.cache_clear()
    return made


def test_other_constants_have_the_same_code_and_their_own_numbers(builds: list[int]) -> None:
    rng = np.random.default_rng(3)
    x = aligned(rng.standard_normal((4, 8), np.float32))
    for _ in range(3):
        factor = rng.standard_normal(8, np.float32)
        subgraph = Subgraph(scaled(factor), (0, 1))
        kernel = Tvm().load(Tvm().codegen(subgraph, BuildOptions(1)), BuildOptions(1))
        y = aligned(np.full((4, 8), np.nan, np.float32))
        kernel.bind([x], [y])()
        np.testing.assert_allclose(y, np.tanh(x * factor), rtol=1e-5)
    assert len(builds) == 1


def test_other_functions_and_threads_have_code_of_their_own(builds: list[int]) -> None:
    factor = np.full(8, 2, np.float32)
    for model in (scaled(factor), scaled(factor, shifted=True)):
        for threads in (1, 2):
            Tvm().codegen(Subgraph(model, (0, 1)), BuildOptions(threads))
    assert len(builds) == 4
