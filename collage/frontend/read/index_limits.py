"""Inputs of which only some numbers make sense: indices of rows, and numbers that the model compares with others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import onnx
from onnx import TensorProto

from collage.frontend.read.scopes import STANDARD, constants_of, integer
from collage.frontend.read.shapes import model_inputs
from collage.frontend.read.weights import array_of
from collage.frontend.rewrite.value_types import Types

Rows: TypeAlias = "int | tuple[int, ...]"
"""A number of rows, or one for each column of the input's last axis where the columns index different axes."""

_SAME_VALUES = frozenset("Cast Expand Flatten Identity Reshape Squeeze Transpose Unsqueeze".split())
"""Operators whose output holds the values of their first input, and no others."""


def index_limits(model: onnx.ModelProto) -> Mapping[str, Rows]:
    """For each input of a model that is used as indices, by name, the rows of the smallest tensor that it indexes.

    An index is at least the negative of that number, and less than it. Inputs that are calculated with before they
    index something are not among them, nor are indices in the bodies of loops and branches. The model must declare the
    types of the indexed values.
    """
    graph = model.graph
    extents = Types.of(graph).shapes
    origin = {info.name: info.name for info in graph.input}
    limits: dict[str, Rows] = {}
    for node in graph.node:
        if node.domain not in STANDARD:
            continue
        if node.op_type in _SAME_VALUES and node.input[0] in origin and not _changes(node):
            origin[node.output[0]] = origin[node.input[0]]
        if node.op_type not in _INDEXED or node.input[1] not in origin or not extents.get(node.input[0]):
            continue
        indices = extents.get(node.input[1], ())
        rows = _INDEXED[node.op_type](node, extents[node.input[0]], indices)
        name = origin[node.input[1]]
        if len(rows) > 1 and not (extents.get(name) and indices and extents[name][-1] == indices[-1]):
            # A reshape has mixed the columns, so the limit is the one beyond which an index is wrong in any column.
            rows = (max(rows) if min(rows) > 0 else -1,)
        if any(each > 0 for each in rows):
            limits[name] = _smaller(rows, limits.get(name, -1))
    return limits


def _changes(node: onnx.NodeProto) -> bool:
    """Whether it is a Cast that may make another number of an index: to bool, or to few bits."""
    return node.op_type == "Cast" and integer(node, "to") not in (TensorProto.INT32, TensorProto.INT64)


def _along_axis(node: onnx.NodeProto, data: Sequence[int], indices: Sequence[int]) -> Sequence[int]:
    axis = integer(node, "axis")
    return (data[axis],) if -len(data) <= axis < len(data) else ()


def _of_columns(node: onnx.NodeProto, data: Sequence[int], indices: Sequence[int]) -> Sequence[int]:
    """Each column indexes an axis of its own, after the axes of the batch."""
    first = integer(node, "batch_dims")
    return tuple(data[first : first + indices[-1]]) if indices and indices[-1] > 0 else ()


_INDEXED: Mapping[str, Callable[[onnx.NodeProto, Sequence[int], Sequence[int]], Sequence[int]]] = {
    **dict.fromkeys(("Gather", "GatherElements", "Scatter", "ScatterElements"), _along_axis),
    **dict.fromkeys(("GatherND", "ScatterND"), _of_columns),
}
"""For operators that take data and indices, the number of rows for each column of the indices; -1 is unknown."""


def _smaller(rows: Sequence[int], other: Rows) -> Rows:
    others = other if isinstance(other, tuple) else (other,) * len(rows)
    longer = rows if len(rows) >= len(others) else tuple(rows) * len(others)
    others = others if len(others) == len(longer) else others * len(longer)
    found = tuple(min(a, b) if min(a, b) > 0 else max(a, b) for a, b in zip(longer, others, strict=True))
    return found[0] if len(set(found)) == 1 else found


_FOLLOWED = frozenset("Cast Flatten Gather Identity Reshape Squeeze Unsqueeze".split())
"""Operators that leave the only element of their first input as it is."""


def accepted_numbers(model: onnx.ModelProto) -> dict[str, int]:
    """Numbers that a model accepts for integer inputs, by name, if zeros or random ones may be none of them.

    For an input of one element it is the first constant that an Equal compares it with; for a divisor it is 1.
    """
    graph = model.graph
    constants = constants_of(graph)
    origin: dict[str, str] = {}
    single: set[str] = set()
    for info in model_inputs(model):
        tensor = info.type.tensor_type
        if tensor.elem_type in (onnx.TensorProto.INT32, onnx.TensorProto.INT64):
            origin[info.name] = info.name
            if tensor.HasField("shape") and all(dim.dim_value == 1 for dim in tensor.shape.dim):
                single.add(info.name)
    found: dict[str, int] = {}
    for node in graph.node:
        if node.op_type in _FOLLOWED and node.input and node.input[0] in origin:
            origin[node.output[0]] = origin[node.input[0]]
        elif node.op_type in ("Div", "Mod") and len(node.input) == 2 and node.input[1] in origin:
            found.setdefault(origin[node.input[1]], 1)
        elif node.op_type == "Equal":
            for mine, other in (node.input, reversed(node.input)) if len(node.input) == 2 else ():
                if origin.get(mine) in single and other in constants:
                    array = array_of(constants[other])
                    if array.size == 1:
                        found.setdefault(origin[mine], int(array.reshape(-1)[0]))
    return found
