"""Models that compute in bfloat16: they are computed in float32, and their inputs and outputs stay bfloat16.

ONNX Runtime has no kernels for bfloat16 on CPUs, so there would be no reference, and few other libraries have some.
Each number of bfloat16 is one of float32. So results are those of the model, without its rounding after each operator.
"""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

from collage.frontend.read.scopes import all_graphs, all_nodes, reads, rename
from collage.frontend.read.shapes import model_inputs
from collage.frontend.read.widen import TYPE_ATTRIBUTES, widen

_NARROW, _WIDE = TensorProto.BFLOAT16, TensorProto.FLOAT
_INNER = "__in_float32"
"""What is appended to the names of inputs and outputs inside of the model."""
_MOVES = frozenset(
    "Cast CastLike Constant ConstantOfShape Flatten Identity Reshape Squeeze Transpose Unsqueeze".split()
)


def computes_in_bfloat16(model: onnx.ModelProto) -> bool:
    """Whether an operator reads or makes bfloat16, and does more than to cast or to move it."""
    narrow: set[str] = set()
    for graph in all_graphs(model.graph):
        narrow.update(each.name for each in graph.initializer if each.data_type == _NARROW)
        narrow.update(each.name for each in graph.input if each.type.tensor_type.elem_type == _NARROW)
    for node in all_nodes(model.graph):
        given = any(_is_narrow(each) for each in node.attribute)
        read = [name in narrow for name in reads(node)]
        if node.op_type not in _MOVES and (given or any(read)):
            return True
        # A cast makes what its attribute says, or what its second input is, and others what they read.
        if given or (node.op_type != "Cast" and any(read[node.op_type == "CastLike" :])):
            narrow.update(node.output)
    return False


def in_float32(model: onnx.ModelProto) -> None:
    """Let a model compute in float32 where it computes in bfloat16, in place."""
    graph = model.graph
    given = {each.name for each in graph.input}
    ends = [
        each for each in (*model_inputs(model), *graph.output) if each.type.tensor_type.elem_type == _NARROW
    ]
    inner = {each.name: each.name + _INNER for each in ends}
    inputs = [name for name in inner if name in given]
    outputs = [name for name in inner if name not in given]
    widen(model, (_NARROW,), _WIDE)
    for info in ends:
        info.type.tensor_type.elem_type = _NARROW
    rename(graph.node, inner)
    for tensor in graph.initializer:
        tensor.name = inner.get(tensor.name, tensor.name)
    for each in all_graphs(graph):
        del each.value_info[:]
    for name in inputs[::-1]:
        graph.node.insert(0, helper.make_node("Cast", [name], [inner[name]], to=_WIDE))
    graph.node.extend(helper.make_node("Cast", [inner[name]], [name], to=_NARROW) for name in outputs)


def _is_narrow(attribute: onnx.AttributeProto) -> bool:
    if attribute.type == onnx.AttributeProto.TENSOR:
        return bool(attribute.t.data_type == _NARROW)
    return attribute.name in TYPE_ATTRIBUTES and attribute.i == _NARROW
