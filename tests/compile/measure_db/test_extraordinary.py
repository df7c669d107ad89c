"""Values that no guard lets through on usual inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from collage.check.extraordinary import extraordinary, note
from collage.check.reference import evaluate
from collage.check.store import ValueStore
from collage.frontend.model import import_model
from collage.graph.magnitudes import unguarded
from tests.helpers.backends_for_tests import onnx_model


def test_values_with_infinities_huge_numbers_or_large_integers(tmp_path: Path) -> None:
    constants = {
        "masked": np.array([0, -np.inf], np.float32),
        "least": np.array([0, np.finfo(np.float32).min], np.float32),
        "large": np.array([1, 1e20], np.float32),
        "zero": np.zeros(2, np.float32),
        "many": np.array([1, 1 << 40]),
    }
    floats = {
        "infinite": helper.make_node("Add", ["x", "masked"], ["infinite"]),
        "huge": helper.make_node("Add", ["x", "least"], ["huge"]),
        "within": helper.make_node("Mul", ["x", "large"], ["within"]),
        "usual": helper.make_node("Div", ["zero", "x"], ["usual"]),
        "less": helper.make_node("Sub", ["zero", "x"], ["less"]),
        "unknown": helper.make_node("Log", ["less"], ["unknown"]),
        "finite": helper.make_node("Exp", ["infinite"], ["finite"]),
    }
    integers = {
        "long": helper.make_node("Mul", ["n", "many"], ["long"]),
        "short": helper.make_node("Add", ["n", "n"], ["short"]),
    }
    model = import_model(
        onnx_model(
            [*floats.values(), *integers.values()],
            {"x": ([2], TensorProto.FLOAT), "n": ([2], TensorProto.INT64)},
            {
                **dict.fromkeys(floats, ([2], TensorProto.FLOAT)),
                **dict.fromkeys(integers, ([2], TensorProto.INT64)),
            },
            constants,
        )
    )
    store = ValueStore(tmp_path)
    evaluate(model, [np.array([1, 2], np.float32), np.array([3, 5])], store)
    found = {model.graph.values[value].name for value in extraordinary(model.graph, store)}
    assert found == {"infinite", "huge", "within", "unknown", "long"}


def test_what_is_made_of_extraordinary_inputs_cannot_be_guarded() -> None:
    nodes = [
        helper.make_node("Add", ["x", "mask"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"]),
        helper.make_node("Mul", ["x", "large"], ["own"]),
    ]
    model = import_model(
        onnx_model(
            nodes,
            {"x": ([2], TensorProto.FLOAT), "mask": ([2], TensorProto.FLOAT)},
            dict.fromkeys(["weights", "own"], ([2], TensorProto.FLOAT)),
            {"large": np.array([1, 1e20], np.float32)},
        )
    )
    graph = model.graph
    value = {each.name: each.id for each in graph.values}
    mask = graph.inputs[model.input_names.index("mask")]
    scores = value["scores"]
    found = unguarded(graph, {mask, scores, value["own"]})
    assert found == {mask, scores}
    assert "mask" in note(graph, model.input_names, {mask, scores})
    assert note(graph, model.input_names, {scores}) == ""
