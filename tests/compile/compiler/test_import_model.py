"""The import alone: it makes a graph of operators, and a fault of Collage is a ModelError."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from collage.compiler.import_model import Imported, import_model
from collage.compiler.task import Source
from collage.errors import ModelError
from collage.frontend.original import AsLoaded
from collage.frontend.relax.importer import DataDependentError
from collage.frontend.rewrite import simplify
from collage.frontend.rewrite.branches import taken_branches
from tests.helpers.compiler.null import Made, chain
from tests.helpers.models import detector, make_model


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
    found = imported(model, sample)
    assert found.suffix is not None
    beyond = [node.op_type for node in found.suffix.graph.node]
    assert beyond in (["NonZero", "Cast"], ["If", "NonZero", "Cast"])


def imported(model: onnx.ModelProto, *samples: Mapping[str, Any]) -> Imported:
    source = Source(model, AsLoaded.of(model), "made up", samples=samples)
    return import_model(replace(Made({}).task, source=source))


def test_a_detector_is_split_before_its_suppression_of_boxes() -> None:
    found = imported(detector())
    assert found.suffix is not None
    before, after = ({n.op_type for n in each.graph.node} for each in (found.original, found.suffix))
    assert "Conv" in before and "NonMaxSuppression" not in before
    assert "NonMaxSuppression" in after and "Conv" not in after
    assert found.model.graph.nodes and any("NonMaxSuppression" in note for note in found.notes)


def test_if_shapes_depend_on_the_inputs_there_is_no_graph() -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["places"])]
    model = make_model(nodes, {"x": [4]}, {"places": [1, "n"]}, types={"places": TensorProto.INT64})
    with pytest.raises(DataDependentError):
        imported(model)


def test_a_fault_of_ours_is_a_model_error(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: object, **__: object) -> None:
        raise IndexError("list index\nout of range")

    monkeypatch.setattr(simplify, "simplify", fail)
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(ModelError, match=r"import fails \(IndexError: list index out of range\)") as raised,
    ):
        imported(chain())
    assert isinstance(raised.value.__cause__, IndexError)
    assert "a fault in Collage" in caplog.text
