"""Shapes that onnx has no rule for, and that depend on no numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from collage.frontend.model import import_model
from collage.frontend.read.shapes import infer_types
from collage.frontend.relax.importer import DataDependentError
from collage.frontend.rewrite.ort_shapes import settle
from collage.frontend.rewrite.value_types import Types

ML, MICROSOFT = helper.make_opsetid("ai.onnx.ml", 3), helper.make_opsetid("com.microsoft", 1)
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
TREE = {
    "nodes_treeids": [0, 0, 0],
    "nodes_nodeids": [0, 1, 2],
    "nodes_featureids": [1, 0, 0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
    "nodes_values": [0.5, 0.0, 0.0],
    "nodes_truenodeids": [1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0],
    "nodes_missing_value_tracks_true": [0, 0, 0],
    "class_treeids": [0, 0],
    "class_nodeids": [1, 2],
    "class_ids": [0, 1],
    "class_weights": [1.0, 1.0],
}


def model(nodes: list[Any], outputs: dict[str, Any], weights: dict[str, Any], **inputs: Any) -> onnx.ModelProto:
    """A model of such operators; ``outputs`` have their element types, and ``inputs`` their shapes."""
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17), ML, MICROSOFT]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def scaled_trees(**labels: Any) -> onnx.ModelProto:
    """What scikit-learn exports: a Scaler, a product, and trees that give labels and scores."""
    nodes = [
        helper.make_node("Scaler", ["x"], ["s"], "scale", domain="ai.onnx.ml", offset=[0.5] * 3, scale=[2.0] * 3),
        helper.make_node("MatMul", ["s", "w"], ["m"], "product"),
        helper.make_node("Normalizer", ["m"], ["n"], "norm", domain="ai.onnx.ml", norm="L2"),
        helper.make_node(
            "TreeEnsembleClassifier",
            ["n"],
            ["label", "scores"],
            "trees",
            domain="ai.onnx.ml",
            **TREE,
            **labels,
        ),
        helper.make_node("ReduceMax", ["scores"], ["best"], "best", axes=[1], keepdims=0),
    ]
    kind = TensorProto.STRING if "classlabels_strings" in labels else INT64
    outputs = {"label": kind, "best": FLOAT}
    return model(nodes, outputs, {"w": np.eye(3, 4, dtype=np.float32)}, x=[5, 3])


def test_what_is_around_trees_is_placed() -> None:
    found = import_model(scaled_trees(classlabels_int64s=[0, 1]))
    assert {found.onnx.graph.node[each].op_type for each in found.opaque} == {
        "Scaler",
        "Normalizer",
        "TreeEnsembleClassifier",
    }
    types = Types.of(found.onnx.graph)
    shapes = {"s": (5, 3), "m": (5, 4), "n": (5, 4), "label": (5,), "scores": (5, 2), "best": (5,)}
    assert {name: types.shapes[name] for name in shapes} == shapes
    assert types.elements["label"] == INT64


def test_texts_end_the_part_that_is_placed() -> None:
    with pytest.raises(DataDependentError, match=r"trees .*output label is text") as caught:
        import_model(scaled_trees(classlabels_strings=["a", "b"]))
    assert caught.value.nodes == {3, 4}
    encoder = helper.make_node(
        "LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", keys_floats=[0.0], values_strings=["zero"]
    )
    made = infer_types(model([encoder], {"y": TensorProto.STRING}, {}, x=[4]))
    before = made.SerializeToString()
    assert settle(made).SerializeToString() == before


def test_quantised_sums_of_onnx_runtime() -> None:
    quantised = {"s": np.float32(0.1), "z": np.uint8(3)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["a"]),
        helper.make_node("QLinearAdd", ["a", "s", "z", "b", "s", "z", "s", "z"], ["c"], "sum", domain="com.microsoft"),
        helper.make_node("DequantizeLinear", ["c", "s", "z"], ["y"]),
    ]
    weights = {**quantised, "b": np.ones((4, 1), np.uint8)}
    made = settle(infer_types(model(nodes, {"y": FLOAT}, weights, x=[2, 1, 7])))
    types = Types.of(made.graph)
    assert types.shapes["c"] == (2, 4, 7) == types.shapes["y"]
    assert types.elements["c"] == TensorProto.UINT8
