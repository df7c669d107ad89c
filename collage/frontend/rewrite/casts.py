"""Casts of 64-bit integers to float move before operators that only move data, such as a Reshape.

An engine that keeps 64-bit integers in 32 bits casts an input of the model rightly, but not what comes of it.
"""

from __future__ import annotations

from collections import Counter

import onnx
from onnx import TensorProto

from collage.frontend.read.scopes import integer, reads, set_all
from collage.frontend.rewrite.value_types import Types

_MOVES = frozenset("Expand Flatten Identity Reshape Squeeze Transpose Unsqueeze".split())
_WIDE = (TensorProto.INT64, TensorProto.UINT64)
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)


def casts_first(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of the model with such casts moved; the model itself if there are none.

    The copy does not declare the types of values that have changed.
    """
    pairs = _pairs(model.graph)
    if not pairs:
        return model
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    stale: set[str] = set()
    while pairs:
        for move, cast in pairs:
            _swap(changed.graph, move, cast)
            stale.add(changed.graph.node[move].output[0])
        pairs = _pairs(changed.graph)
    graph = changed.graph
    set_all(graph.value_info, [info for info in graph.value_info if info.name not in stale])
    return changed


def _pairs(graph: onnx.GraphProto) -> list[tuple[int, int]]:
    """Positions of operators that move a wide integer, each with the cast to float that alone reads the result.

    No operator is in two pairs.
    """
    elements = dict(Types.of(graph).elements)
    for node in graph.node:
        if node.op_type in _MOVES and node.input[0] in elements:
            elements.setdefault(node.output[0], elements[node.input[0]])
    made = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    readers = Counter(name for node in graph.node for name in reads(node))
    readers.update(info.name for info in graph.output)
    used: set[int] = set()
    found: list[tuple[int, int]] = []
    for index, node in enumerate(graph.node):
        if node.domain or node.op_type != "Cast" or node.input[0] not in made:
            continue
        at = made[node.input[0]]
        move = graph.node[at]
        if integer(node, "to") not in _FLOATS or move.domain or move.op_type not in _MOVES:
            continue
        if (
            elements.get(move.input[0], 0) in _WIDE
            and readers[move.output[0]] == 1
            and used.isdisjoint((at, index))
        ):
            used.update((at, index))
            found.append((at, index))
    return found


def _swap(graph: onnx.GraphProto, at: int, index: int) -> None:
    """Swap the two operators, in place. The value between them keeps its name."""
    move, cast = onnx.NodeProto(), onnx.NodeProto()
    move.CopyFrom(graph.node[at])
    cast.CopyFrom(graph.node[index])
    between = move.output[0]
    cast.input[0], move.input[0], move.output[0], cast.output[0] = (
        move.input[0],
        between,
        cast.output[0],
        between,
    )
    graph.node[at].CopyFrom(cast)
    graph.node[index].CopyFrom(move)
