"""Attention whose queries OpenVINO overwrites while it still reads them: with as many heads as tokens.

OpenVINO 2026.4 makes one kernel of attention and of the Transposes beside it. Where the result has the shape of the
queries, that kernel writes it over them. This is right where each head is read and written in the same place. A
Transpose of only one of the two that changes the places, and not the shape, makes results that are off by 100 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import onnx

from collage.frontend.rewrite.value_types import Types

_REASON = "exchanges equal extents beside attention, where the engine overwrites what it still reads"
_PRODUCTS = frozenset("Attention Einsum Gemm MatMul".split())
_WHOLE = frozenset("Attention GroupQueryAttention MultiHeadAttention".split())
"""Operators that hold the Transposes, too, where queries are rows of all heads."""
_PASSED = frozenset(
    "Abs Add Cast Clip Div Dropout Elu Erf Exp Flatten Gelu HardSwish Identity LeakyRelu Log Max Min Mish Mul Neg Pow "
    "Reciprocal Relu Reshape Sigmoid Softplus Sqrt Squeeze Sub Sum Tanh Transpose Unsqueeze Where".split()
)
"""Operators that may be between the product and the Transpose: those of single elements, and those that move data."""


def square_attention(graph: onnx.GraphProto, types: Types) -> Mapping[int, str]:
    """What is the matter with such Transposes, and with operators that hold them, by index.

    Which ones OpenVINO leaves apart depends on much else. All of them count, next to a product of two values that are
    not constant, also where there are elementwise operators and views between.
    """
    turned: dict[str, tuple[str, Sequence[int]]] = {}
    found: set[int] = set()
    moving: list[int] = []
    for index, node in enumerate(graph.node):
        if node.op_type == "Transpose" and _exchanges(node, types, turned):
            moving.append(index)
        elif (node.op_type == "Einsum" and _swaps(node, types)) or (
            node.op_type in _WHOLE and _has_head_per_token(node, types)
        ):
            found.add(index)
    if moving:
        made, read = _beside_products(graph)
        found.update(i for i in moving if graph.node[i].input[0] in made or graph.node[i].output[0] in read)
    return dict.fromkeys(sorted(found), _REASON)


def _exchanges(node: onnx.NodeProto, types: Types, turned: dict[str, tuple[str, Sequence[int]]]) -> bool:
    """Whether the Transpose, or a row of them, moves rows as wholes, and not to another shape.

    ``turned`` are the values that Transposes have made so far: of what, and how its axes are ordered.
    """
    given: Sequence[int] = next((list(each.ints) for each in node.attribute if each.name == "perm"), ())
    orders = [(node.input[0], given)]
    if node.input[0] in turned:
        source, before = turned[node.input[0]]
        if len(before) == len(given):
            orders.append((source, [before[axis] for axis in given]))
    turned[node.output[0]] = orders[-1]
    return any(_keeps_shape(types.shapes.get(source, ()), order) for source, order in orders)


def _keeps_shape(shape: Sequence[int], order: Sequence[int]) -> bool:
    if not shape or len(order) != len(shape) or order[-1] != len(shape) - 1:
        return False
    moved = [axis for axis in order if shape[axis] != 1]
    return moved != sorted(moved) and all(shape[a] > 0 and shape[a] == shape[i] for i, a in enumerate(order))


def _swaps(node: onnx.NodeProto, types: Types) -> bool:
    """Whether the Einsum has two equal extents in another order than one of its operands has."""
    equation = next((each.s.decode() for each in node.attribute if each.name == "equation"), "")
    terms, _, result = equation.replace(" ", "").replace("...", "").partition("->")
    shape = types.shapes.get(node.output[0], ())
    if len(node.input) < 2 or len(result) > len(shape):
        return False
    extents = dict(zip(reversed(result), reversed(shape), strict=False))
    return any(
        extents[a] == extents[b] > 1 and -1 < term.find(b) < term.find(a)
        for a, b in combinations(result, 2)
        for term in terms.split(",")
    )


def _has_head_per_token(node: onnx.NodeProto, types: Types) -> bool:
    shape = types.shapes.get(node.input[0], ())
    heads = {each.i for each in node.attribute if each.name in ("num_heads", "q_num_heads")}
    return len(shape) == 3 and shape[1] > 1 and shape[1] in heads


def _beside_products(graph: onnx.GraphProto) -> tuple[set[str], set[str]]:
    """What is made of products of two values that are not constant, and what such products are made of."""
    fixed = {"", *(tensor.name for tensor in graph.initializer)}
    made: set[str] = set()
    read: set[str] = set()
    for node in graph.node:
        if node.op_type == "Shape" or fixed.issuperset(node.input):
            fixed.update(node.output)
        elif node.op_type in _PRODUCTS and len(node.input) > 1 and fixed.isdisjoint(node.input[:2]):
            made.update(node.output)
            read.update(node.input)
        elif node.op_type in _PASSED and made.intersection(node.input):
            made.update(node.output)
    for node in reversed(graph.node):
        if node.op_type in _PASSED and read.intersection(node.output):
            read.update(node.input)
    return made, read
