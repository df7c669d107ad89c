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


def quantize_weights(model: onnx.ModelProto) -> None:
    """Store weights that QuantizeLinear rounds as the integers that it gives, in place, as quantised files have them.

    Their DequantizeLinear stays: it tells an engine that the integers are weights.
    """
    graph = model.graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    # The exporter stores equal zero points once, and writes Identity for the others.
    copies = {n.output[0]: n for n in graph.node if n.op_type == "Identity" and n.input[0] in weights}
    for node in list(graph.node):
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            node.input[:] = [copies[name].input[0] if name in copies else name for name in node.input]
        if node.op_type == "QuantizeLinear" and all(name in weights for name in node.input):
            known = {name: onnx.numpy_helper.to_array(weights[name]) for name in node.input}
            for name, value in _evaluate(node, known, model.opset_import).items():
                graph.initializer.append(onnx.numpy_helper.from_array(value, name))
            graph.node.remove(node)
    used = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    for name, node in copies.items():
        if name not in used:
            graph.node.remove(node)
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _evaluate(
    node: onnx.NodeProto, known: dict[str, np.ndarray], opsets: Iterable[onnx.OperatorSetIdProto]
) -> dict[str, np.ndarray]:
    inputs = [name for name in node.input if name]
    function = onnx.helper.make_function("collage", "fold", inputs, node.output, [node], list(opsets))
    values = ReferenceEvaluator(function).run(None, {name: known[name] for name in inputs}, attributes={})
    return {name: np.asarray(value) for name, value in zip(node.output, values, strict=True)}
