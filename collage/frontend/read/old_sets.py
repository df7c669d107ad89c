"""Operators of sets 1 to 6 as operator set 7 has them, where onnx's converter refuses them or gets them wrong.

Onnx converts the rest of the model. These operators are hidden from it in a domain of their own in the meantime. Until
set 6 an attribute named the axis along which an operand was broadcast; since then it is always along the last axes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.version_converter
from onnx import TensorProto, helper, numpy_helper

from collage.frontend.read.apart import without_weights
from collage.frontend.read.scopes import STANDARD, all_nodes, bodies, constants_of, opset_of, set_all
from collage.graph.dataflow import Array

_TARGET = 7
_HIDDEN = "collage.hidden"
_OLDEST_IR = 4
"""Until IR version 3 each weight had to be an input of the graph, too, and onnx's converter refuses those that are
none."""

_Shape = Sequence["int | None"]


@dataclass(frozen=True)
class _Scope:
    """What is known about the values of a graph: their shapes, with None for unknown extents, and constants.

    ``names`` has all names of values in the model.
    """

    shapes: Mapping[str, _Shape]
    constants: Mapping[str, TensorProto]
    names: set[str]

    def constant(self, node: onnx.NodeProto, position: int) -> Array:
        """The array of that input. Raises ValueError if it is no constant."""
        tensor = self.constants.get(node.input[position])
        if tensor is None:
            raise ValueError(f"input {position} of a {node.op_type} is no constant")
        return numpy_helper.to_array(tensor)

    def shape(self, node: onnx.NodeProto, position: int) -> _Shape:
        """The shape of that input. Raises ValueError if not even the rank is known."""
        found = self.shapes.get(node.input[position])
        if found is None:
            raise ValueError(f"the rank of input {position} of a {node.op_type} is not known")
        return found


_Rewrite = Callable[[onnx.NodeProto, _Scope], "onnx.NodeProto | None"]
"""Changes the node, in place. Returns a node that is to be put before it, or None."""


def to_set_7(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a model of an older operator set in set 7.

    Raises ValueError for an operator whose meaning depends on a rank or a number that is not known, and whatever onnx
    raises where it has no conversion.
    """
    hidden = onnx.ModelProto()
    hidden.CopyFrom(model)
    hidden.ir_version = max(model.ir_version, _OLDEST_IR)
    version = opset_of(model)
    for node in all_nodes(hidden.graph):
        if node.domain in STANDARD and version < _SINCE.get(node.op_type, 0):
            node.domain = _HIDDEN
    hidden.opset_import.append(helper.make_opsetid(_HIDDEN, 1))
    found = onnx.version_converter.convert_version(hidden, _TARGET)
    set_all(found.opset_import, [each for each in found.opset_import if each.domain != _HIDDEN])
    names = {*_names(found.graph)}
    _rewrite(found.graph, _PLAIN, {}, names)
    _rewrite(found.graph, _RANKED, _shapes(found), names)
    found.ir_version = model.ir_version
    return found


def _rewrite(
    graph: onnx.GraphProto, rules: Mapping[str, _Rewrite], shapes: Mapping[str, _Shape], names: set[str]
) -> None:
    """Rewrite hidden operators of the graph and of its bodies, in which only constants have known shapes, in place."""
    constants = constants_of(graph)
    scope = _Scope({**{name: list(each.dims) for name, each in constants.items()}, **shapes}, constants, names)
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        for body in bodies(node):
            _rewrite(body, rules, {}, names)
        if node.domain == _HIDDEN and node.op_type in rules:
            node.domain = ""
            before = rules[node.op_type](node, scope)
            if before is not None:
                nodes.append(before)
        nodes.append(node)
    set_all(graph.node, nodes)


def _shapes(model: onnx.ModelProto) -> dict[str, _Shape]:
    """The shapes of the main graph's values, as onnx infers them where it gets others for the hidden operators."""
    bare = without_weights(model)
    several = _fresh("several", {*_names(bare.graph)})
    bare.graph.input.append(helper.make_tensor_value_info(several, TensorProto.INT64, ["n"]))
    for node in bare.graph.node:
        if node.domain == _HIDDEN:
            # All of these make what is of the rank of their first operand, and all but Tile what is of its extents.
            op, more = ("Tile", [several]) if node.op_type == "Tile" else ("Identity", [])
            node.CopyFrom(helper.make_node(op, [node.input[0], *more], node.output))
    graph = onnx.shape_inference.infer_shapes(bare, data_prop=True).graph
    found: dict[str, _Shape] = {}
    for info in (*graph.value_info, *graph.input, *graph.output):
        tensor = info.type.tensor_type
        if tensor.HasField("shape"):
            found[info.name] = [d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim]
    return found


def _names(graph: onnx.GraphProto) -> list[str]:
    """The names of all values of the graph and of its bodies."""
    names = [each.name for each in (*graph.input, *graph.initializer)]
    for node in graph.node:
        names += [*node.input, *node.output]
        for body in bodies(node):
            names += _names(body)
    return names


def _fresh(name: str, names: set[str]) -> str:
    """A name that begins with that one, and is added to ``names``."""
    number = 1
    while (found := f"{name}_{number}") in names:
        number += 1
    names.add(found)
    return found


def _taken(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    """The value of the attribute, which the node no longer has then."""
    for position, each in enumerate(node.attribute):
        if each.name == name:
            value = helper.get_attribute_value(each)
            del node.attribute[position]
            return value
    return default


def _give(node: onnx.NodeProto, name: str, value: Any) -> None:
    node.attribute.append(helper.make_attribute(name, value))


def _unsqueezed(node: onnx.NodeProto, axes: Sequence[int], scope: _Scope) -> onnx.NodeProto:
    """A node that inserts the axes into the second input, from which the given one reads then."""
    name = _fresh(node.input[1], scope.names)
    found = helper.make_node("Unsqueeze", [node.input[1]], [name], axes=list(axes))
    node.input[1] = name
    return found


def _broadcast(node: onnx.NodeProto, scope: _Scope) -> onnx.NodeProto | None:
    """The axes of the second operand begin at ``axis`` of the first one, or are its last ones.

    ``consumed_inputs``, of sets below 6, means nothing.
    """
    _taken(node, "consumed_inputs")
    axis, broadcast = _taken(node, "axis"), _taken(node, "broadcast", 0)
    if axis is None or not broadcast or scope.shapes.get(node.input[1]) == []:
        return None
    rank, own = len(scope.shape(node, 0)), len(scope.shape(node, 1))
    axes = range(own, rank - (axis + rank if axis < 0 else axis))
    return _unsqueezed(node, axes, scope) if axes else None


def _prelu(node: onnx.NodeProto, scope: _Scope) -> onnx.NodeProto | None:
    """Several slopes in one axis are those of channels, where there are as many."""
    _taken(node, "consumed_inputs")
    slope = scope.shape(node, 1)
    if len(slope) != 1 or slope[0] == 1:
        return None
    data = scope.shape(node, 0)
    if len(data) <= 2 or (None not in (slope[0], data[1]) and slope[0] != data[1]):
        return None
    return _unsqueezed(node, range(1, len(data) - 1), scope)


def _cast(node: onnx.NodeProto, scope: _Scope) -> onnx.NodeProto | None:
    """The type is text."""
    to = _taken(node, "to")
    _give(node, "to", TensorProto.DataType.Value(to.decode().upper()) if isinstance(to, bytes) else to)
    return None


def _split(node: onnx.NodeProto, scope: _Scope) -> onnx.NodeProto | None:
    """The sizes may be an input, of floats."""
    if len(node.input) > 1:
        if node.input[1]:
            sizes = scope.constant(node, 1)
            _taken(node, "split")
            _give(node, "split", [int(size) for size in sizes.reshape(-1)])
        del node.input[1:]
    return None


def _pad(node: onnx.NodeProto, scope: _Scope) -> onnx.NodeProto | None:
    """The widths have another name."""
    paddings = _taken(node, "paddings")
    if paddings is not None:
        _give(node, "pads", paddings)
    return None


def _tile(node: onnx.NodeProto, scope: _Scope) -> onnx.NodeProto | None:
    """One axis is repeated, and the inputs are how often and which one."""
    if len(node.input) != 3:
        return None
    tiles, axis = (int(scope.constant(node, position).item()) for position in (1, 2))
    rank = len(scope.shape(node, 0))
    repeats = np.ones(rank, np.int64)
    repeats[axis] = tiles
    name = _fresh(node.input[1], scope.names)
    del node.input[1:]
    node.input.append(name)
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(repeats))


def _lp_pool(node: onnx.NodeProto, scope: _Scope) -> onnx.NodeProto | None:
    """The norm is a float, which must be an integer now."""
    p = _taken(node, "p", 2.0)
    if p != int(p):
        raise ValueError(f"a {node.op_type} with p = {p:g}, which is no integer")
    _give(node, "p", int(p))
    return None


def _without(name: str) -> _Rewrite:
    """The attribute means nothing now."""

    def rewrite(node: onnx.NodeProto, scope: _Scope) -> None:
        _taken(node, name)

    return rewrite


_PLAIN: Mapping[str, _Rewrite] = {
    "Cast": _cast,
    "Split": _split,
    "Pad": _pad,
    "Gemm": _without("broadcast"),  # onnx's converter takes known extents only
    **dict.fromkeys(("LpPool", "GlobalLpPool"), _lp_pool),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _without("output_sequence")),
}
"""The operators that are rewritten whatever the shapes are."""
_RANKED: Mapping[str, _Rewrite] = {
    **dict.fromkeys("Add Sub Mul Div Pow And Or Xor Greater Less Equal".split(), _broadcast),
    "PRelu": _prelu,
    "Tile": _tile,
}
"""The operators for which a rank must be known. Their results have that of their first operand."""
_SINCE: Mapping[str, int] = {
    **dict.fromkeys((*_PLAIN, *_RANKED), _TARGET),
    **dict.fromkeys(("Split", "Pad", "LpPool", "GlobalLpPool"), 2),
    **dict.fromkeys(("Cast", "Tile"), 6),
}
"""The operator set from which on operators are as in set 7, as far as the rules above are concerned."""
