"""The import alone: it makes a graph of operators, and a fault of Collage is a ModelError."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from collage.compiler.passes import import_model
from collage.compiler.passes.import_model import Import
from collage.errors import ModelError
from tests.compiler.null import Made


def test_the_model_has_the_operators_of_the_graph() -> None:
    made = Made({})
    found = Import()(made.context, replace(made.start, model=None)).imported
    assert [node.op for node in found.graph.nodes] == ["nn.relu", "tanh", "exp", "sigmoid"]
    assert found.name == "made up"


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


def test_a_pass_before_the_import_says_what_is_missing() -> None:
    with pytest.raises(RuntimeError, match="the import comes first"):
        _ = replace(Made({}).start, model=None).imported
