"""Nodes that cannot be converted stay opaque, with the end of the reason, which tells more than its beginning."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest
from onnx import helper

from collage.frontend.model import import_model
from collage.frontend.relax import importer
from tests.models import make_model


def test_the_end_of_a_long_reason_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(inputs: list[Any], attrs: dict[str, Any]) -> Any:
        raise RuntimeError("a frame of TVM's stack\n" * 100 + "Relu of nothing")

    monkeypatch.setattr(importer, "OVERRIDES", MappingProxyType({**importer.OVERRIDES, "Relu": fail}))
    nodes = [helper.make_node("Relu", ["x"], ["r"], "relu"), helper.make_node("Exp", ["r"], ["y"], "exp")]
    model = import_model(make_model(nodes, {"x": [2, 3]}, {"y": [2, 3]}))
    (reason,) = model.opaque.values()
    assert reason.startswith("TVM's importer: RuntimeError: ")
    assert reason.endswith("a frame of TVM's stack Relu of nothing")
    assert len(reason) < 300 and "\n" not in reason
    assert [node.op for node in model.graph.nodes] == ["onnx.Relu", "exp"]


def test_a_concatenation_without_one_of_its_inputs_stays_opaque() -> None:
    """TVM's importer would end the process."""
    node = helper.make_node("Concat", ["x", ""], ["y"], "join", axis=0)
    model = import_model(make_model([node], {"x": [2, 3]}, {"y": [2, 3]}))
    assert list(model.opaque.values()) == ["one of any number of inputs is left out"]
