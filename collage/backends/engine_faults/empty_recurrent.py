"""Recurrent operators over nothing, with which ONNX Runtime 1.31 ends the process.

It divides an empty batch of an LSTM or a GRU among its threads, and a GRU's steps where there are none. With an input
of the sequences' lengths it does so, too, if not always.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from collage.frontend.read.scopes import bodies
from collage.frontend.read.shapes import inferred, model_inputs
from collage.frontend.rewrite.value_types import Types

_RECURRENT = ("LSTM", "GRU")


def empty_recurrent(model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]) -> str:
    """Which recurrent operator gets nothing for inputs of these shapes (elements per axis, by name), or "".

    Writes the shapes into the caller's model. Where types cannot be inferred, "" is returned, too.
    """
    for info in model_inputs(model):
        if info.name in shapes and info.type.HasField("tensor_type"):
            shape = info.type.tensor_type.shape
            del shape.dim[:]
            for extent in shapes[info.name]:
                shape.dim.add().dim_value = extent
    del model.graph.value_info[:]
    for output in model.graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")
    try:
        graph = inferred(model).graph
    except Exception:  # onnx raises errors of several kinds that share no base class
        return ""
    return _first(graph, Types.of(graph))


def _first(graph: onnx.GraphProto, types: Types) -> str:
    for node in graph.node:
        shape = types.shapes.get(node.input[0], ()) if node.input else ()
        if node.op_type in _RECURRENT and len(shape) == 3:
            steps, items = shape[:2]
            if items == 0 or (steps == 0 and node.op_type == "GRU"):
                what = "an empty batch" if items == 0 else "no steps"
                return f"{node.op_type}{f' ({node.name})' if node.name else ''} gets {what}"
        for body in bodies(node):
            if found := _first(body, types.inside(body)):
                return found
    return ""
