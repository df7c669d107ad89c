"""Integers that a model compares its inputs with, such as a mode or a sampling rate.

The model may not run on other values of these inputs.
"""

from __future__ import annotations

import onnx

from collage.frontend.read.scopes import constants_of
from collage.frontend.read.shapes import model_inputs
from collage.frontend.read.weights import array_of

_FOLLOWED = frozenset("Cast Flatten Gather Identity Reshape Squeeze Unsqueeze".split())
"""Operators that leave the only element of their first input as it is."""


def compared_numbers(model: onnx.ModelProto) -> dict[str, int]:
    """For integer inputs of one element, by name, the first constant that an Equal compares them with."""
    graph = model.graph
    constants = constants_of(graph)
    origin: dict[str, str] = {}
    for info in model_inputs(model):
        tensor = info.type.tensor_type
        one = tensor.HasField("shape") and all(dim.dim_value == 1 for dim in tensor.shape.dim)
        if one and tensor.elem_type in (onnx.TensorProto.INT32, onnx.TensorProto.INT64):
            origin[info.name] = info.name
    found: dict[str, int] = {}
    for node in graph.node:
        if node.op_type in _FOLLOWED and node.input and node.input[0] in origin:
            origin[node.output[0]] = origin[node.input[0]]
        elif node.op_type == "Equal":
            for mine, other in (node.input, reversed(node.input)) if len(node.input) == 2 else ():
                if mine in origin and other in constants:
                    array = array_of(constants[other])
                    if array.size == 1:
                        found.setdefault(origin[mine], int(array.reshape(-1)[0]))
    return found
