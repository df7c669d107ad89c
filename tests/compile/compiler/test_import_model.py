"""The import alone: it makes a graph of operators, and a fault of Collage is a ModelError."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import onnx
import pytest
from collage.compiler.passes import import_model
from collage.compiler.passes.import_model import Import
from collage.compiler.state import Source
from onnx import TensorProto, helper

from collage.errors import ModelError
from collage.frontend.original import AsLoaded
from collage.frontend.relax.importer import DataDependentError
from collage.frontend.rewrite.branches import taken_branches
from collage.frontend.rewrite.simplify import simplify
from tests.helpers.compiler.null import Made
from tests.helpers.models import make_model


def test_nodes_with_dynamic_shapes_are_those_of_the_model_with_its_branches() -> None:
    def branch(op: str) -> onnx.GraphProto:
        return helper.make_graph(
            [helper.make_node(op, ["kept"], ["t"])],
            op,
            [],
            [helper.make_tensor_value_info("t", TensorProto.FLOAT, [4])],
        )

    nodes = [
        helper.make_node("Relu", ["x"], ["kept"]),
        helper.make_node("Equal", ["rate", "wide"], ["is_wide"]),
        helper.make_node("If", ["is_wide"], ["z"], then_branch=branch("Neg"), else_branch=branch("Exp")),
        helper.make_node("NonZero", ["z"], ["places"]),
        helper.make_node("Cast", ["places"], ["y"], to=TensorProto.FLOAT),
    ]
    types = {"rate": TensorProto.INT64}
    model = make_model(nodes, {"x": [4], "rate": []}, {"y": [1, "n"]}, {"wide": np.array(16000)}, types=types)
    sample = {"x": np.ones(4, np.float32), "rate": np.array(16000)}
    assert taken_branches(model, [sample]).branches
    made = Made({})
    source = Source(model, AsLoaded.of(model), "branches", samples=(sample,))
    with pytest.raises(DataDependentError) as raised:
        Import()(made.context, replace(made.start, model=None, source=source))
    graph = simplify(model).graph
    beyond = [graph.node[at].op_type for at in sorted(raised.value.nodes)]
    assert beyond in (["NonZero", "Cast"], ["If", "NonZero", "Cast"])


def test_a_fault_of_ours_is_a_model_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object, **__: object) -> None:
        raise IndexError("list index\nout of range")

    made = Made({})
    monkeypatch.setattr(import_model, "simplify", fail)
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(ModelError, match=r"import fails \(IndexError: list index out of range\)") as raised,
    ):
        Import()(made.context, made.start)
    assert isinstance(raised.value.__cause__, IndexError)
    assert "a fault in Collage" in caplog.text
