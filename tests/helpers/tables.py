"""Small models of tables: trees, encoders and scalers, whose first axis is open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

COLUMNS = 4
CLASSES = ("cat", "dog", "emu")


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    constants: Sequence[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    """A model with operators of tables."""
    graph = helper.make_graph(list(nodes), "table", list(inputs), list(outputs), list(constants))
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def floats(name: str, *shape: int | str | None, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    """The type of a tensor."""
    return helper.make_tensor_value_info(name, kind, list(shape))


def stumps(count: int = 12, columns: int = COLUMNS, classes: int = 3, spread: float = 1.0) -> dict[str, Any]:
    """The attributes of so many trees of depth one, which split at random numbers, and a vote of theirs for a class."""
    rng = np.random.default_rng(7)
    ids, leaves = range(count), [(tree, leaf) for tree in range(count) for leaf in (1, 2)]
    return {
        "nodes_treeids": [tree for tree in ids for _ in range(3)],
        "nodes_nodeids": [0, 1, 2] * count,
        "nodes_featureids": [each for tree in ids for each in (tree % columns, 0, 0)],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"] * count,
        "nodes_values": [each for _ in ids for each in (float(np.float32(spread * rng.normal())), 0.0, 0.0)],
        "nodes_truenodeids": [1, 0, 0] * count,
        "nodes_falsenodeids": [2, 0, 0] * count,
        "class_treeids": [tree for tree, _ in leaves],
        "class_nodeids": [leaf for _, leaf in leaves],
        "class_ids": [int(rng.integers(classes)) for _ in leaves],
        "class_weights": [float(np.float32(rng.random())) for _ in leaves],
    }


def trees(
    first: int | str | None = None, *, texts: bool = False, zipmap: bool = False, **shape: Any
) -> onnx.ModelProto:
    """A classifier of rows; the ``first`` axis is open by default. Its classes may be texts, its scores maps."""
    labels = {"classlabels_strings": CLASSES} if texts else {"classlabels_int64s": [3, 5, 9]}
    scores = "scores" if zipmap else "probabilities"
    about = {**stumps(**shape), **labels, "post_transform": "SOFTMAX"}
    nodes = [
        helper.make_node("TreeEnsembleClassifier", ["X"], ["label", scores], "trees", domain="ai.onnx.ml", **about)
    ]
    kind = TensorProto.STRING if texts else TensorProto.INT64
    outputs = [floats("label", first, kind=kind), floats("probabilities", first, 3)]
    if zipmap:
        nodes.append(helper.make_node("ZipMap", [scores], ["probabilities"], "maps", domain="ai.onnx.ml", **labels))
        of_maps = helper.make_map_type_proto(kind, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
        outputs[1] = helper.make_value_info("probabilities", helper.make_sequence_type_proto(of_maps))
    return model_of(nodes, [floats("X", first, shape.get("columns", COLUMNS))], outputs)


def pipeline() -> onnx.ModelProto:
    """Columns of numbers and of texts, which are scaled and encoded, and then a regression by a product."""
    ml = {"domain": "ai.onnx.ml"}
    nodes = [
        helper.make_node("Imputer", ["age"], ["full"], "full", imputed_value_floats=[40.0], **ml),
        helper.make_node("Scaler", ["full"], ["scaled"], "scale", offset=[40.0], scale=[0.1], **ml),
        helper.make_node("OneHotEncoder", ["city"], ["hot"], "hot", cats_strings=["kiel", "oslo"], zeros=1, **ml),
        helper.make_node("Reshape", ["hot", "shape"], ["flat"], "flat"),
        helper.make_node("Concat", ["scaled", "flat"], ["all"], "all", axis=1),
        helper.make_node(
            "LinearRegressor", ["all"], ["y"], "line", coefficients=[1.0, 2.0, 3.0], intercepts=[0.5], **ml
        ),
    ]
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [-1, 2])
    inputs = [floats("age", None, 1), floats("city", None, 1, kind=TensorProto.STRING)]
    return model_of(nodes, inputs, [floats("y", None, 1)], [shape])


def rows(count: int, seed: int = 0, columns: int = COLUMNS) -> np.ndarray:
    """So many rows of random numbers."""
    return np.random.default_rng(seed).standard_normal((count, columns)).astype(np.float32)
