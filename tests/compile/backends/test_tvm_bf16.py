"""TVM's kernels that read and write bfloat16, against a float64 model of the rounding."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from onnx import helper

pytest.importorskip("tvm")

from collage.backends.tvm import Tvm
from collage.frontend.model import import_model
from collage.frontend.subgraph import Subgraph
from collage.kernel.target import reduced_precisions
from tests.helpers.backends.bf16_checks import check_all, check_special_values
from tests.helpers.models import make_model

pytestmark = pytest.mark.skipif(not reduced_precisions(), reason="this processor has no arithmetic of bfloat16")
BACKEND = Tvm()
G = np.linspace(0.5, 1.5, 64, dtype=np.float32)


def node(op: str, inputs: list[str], outputs: list[str], **attrs: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, **attrs)


def network(nodes: list[onnx.NodeProto], inputs: Mapping[str, list[int]], outputs: Mapping[str, list[int]]) -> Subgraph:
    """All of a small model as one subgraph."""
    model = import_model(make_model(nodes, dict(inputs), dict(outputs), {"g": G, "axis": np.array([1])}))
    return Subgraph(model, [each.id for each in model.graph.nodes])


NETWORKS = {
    "softmax": network([node("Softmax", ["x"], ["y"])], {"x": [7, 33]}, {"y": [7, 33]}),
    "many rows": network([node("Softmax", ["x"], ["y"])], {"x": [400, 130]}, {"y": [400, 130]}),
    "largest": network([node("ReduceMax", ["x", "axis"], ["y"], keepdims=0)], {"x": [5, 70]}, {"y": [5]}),
    "mean": network([node("ReduceMean", ["x", "axis"], ["y"], keepdims=0)], {"x": [5, 70]}, {"y": [5]}),
    "sigmoid": network([node("Sigmoid", ["x"], ["y"])], {"x": [3, 1000]}, {"y": [3, 1000]}),
    "transposed": network(
        [node("Transpose", ["x"], ["t"], perm=[1, 0]), node("Tanh", ["t"], ["y"])], {"x": [40, 65]}, {"y": [65, 40]}
    ),
    "normalised sum": network(
        [
            node("Add", ["x", "r"], ["s"]),
            node("LayerNormalization", ["s", "g", "g"], ["y"], axis=-1),
        ],
        {"x": [12, 64], "r": [12, 64]},
        {"s": [12, 64], "y": [12, 64]},
    ),
    "a factor of each row": network(
        [node("Mul", ["x", "m"], ["y"])], {"x": [9, 64], "m": [9, 1]}, {"y": [9, 64]}
    ),
}  # fmt: skip


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", NETWORKS)
def test_kernels_compute_what_the_rounding_says(name: str, threads: int) -> None:
    check_all(BACKEND, NETWORKS[name], threads)


@pytest.mark.parametrize("name", ["sigmoid", "transposed"])
def test_special_values(name: str) -> None:
    check_special_values(BACKEND, NETWORKS[name], least=3)
