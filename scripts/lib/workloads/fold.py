"""Constant folding of what the exporter leaves behind, such as the arithmetic on the amounts of a Pad."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator


def fold_constants(model: onnx.ModelProto) -> None:
    """Turn every node that hangs on Constant nodes alone into an initializer, in place.

    Weights are initializers from the start and are left as they are: this shrinks the graph, not the tables.
    """
    known: dict[str, np.ndarray] = {}
    kept: list[onnx.NodeProto] = []
    for node in model.graph.node:  # in topological order
        if all(name in known for name in node.input if name):
            known |= _evaluate(node, known, model.opset_import)
        else:
            kept.append(node)
    used = {name for node in kept for name in node.input} | {value.name for value in model.graph.output}
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(value, name) for name, value in known.items() if name in used
    )
    del model.graph.node[:]
    model.graph.node.extend(kept)


def _evaluate(
    node: onnx.NodeProto, known: dict[str, np.ndarray], opsets: Iterable[onnx.OperatorSetIdProto]
) -> dict[str, np.ndarray]:
    inputs = [name for name in node.input if name]
    function = onnx.helper.make_function("collage", "fold", inputs, node.output, [node], list(opsets))
    values = ReferenceEvaluator(function).run(None, {name: known[name] for name in inputs}, attributes={})
    return {name: np.asarray(value) for name, value in zip(node.output, values, strict=True)}
