"""What OpenVINO gets wrong on ordinary inputs, though a sample need not show it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

import onnx
import onnx.inliner
from google.protobuf.message import EncodeError

from collage.backends.engine_faults.square_attention import square_attention
from collage.frontend.read.scopes import bodies, captures, constants_of, integer
from collage.frontend.read.shapes import inferred
from collage.frontend.read.weights import small_array
from collage.frontend.rewrite.value_types import INTEGERS, Types
from collage.graph.decisions import MOST_ELEMENTS, are_powers_of_two

log = logging.getLogger(__name__)

_EXTENTS = frozenset(("Shape", "Size"))
"""Operators whose results do not depend on the numbers of their operands."""


def faulty_nodes(model: onnx.ModelProto) -> Mapping[int, str]:
    """The nodes of the main graph, by index, that OpenVINO gets wrong, with the reasons.

    What is computed of constants and extents alone counts as a constant. Types that the model does not declare are
    inferred, in a copy. In a model with functions of its own, a
    fault counts for all nodes.
    """
    if model.functions:
        found = _faulty(_inlined(model))
        return dict.fromkeys(range(len(model.graph.node)), next(iter(found.values()))) if found else {}
    return _faulty(model)


def _faulty(model: onnx.ModelProto) -> Mapping[int, str]:
    graph = model.graph
    types = Types.of(graph)
    if any(name not in types.shapes for node in graph.node for name in node.output if name):
        try:
            types = Types.of(inferred(model).graph)
        except Exception as error:  # onnx raises errors of several kinds that share no base class
            log.info("types are not inferred: %s", error)
    return _faults(graph, types, frozenset(each.name for each in graph.input), {})


def _inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without functions of its own, as far as it has less than 2 GiB."""
    try:
        return onnx.inliner.inline_local_functions(model)
    except (EncodeError, RuntimeError, ValueError) as error:
        log.info("functions are not looked into: %s", error)
        return model


def _faults(
    graph: onnx.GraphProto, types: Types, given: Collection[str], outer: Mapping[str, onnx.TensorProto]
) -> dict[int, str]:
    """The faults of a graph in which the values ``given`` depend on data, and ``outer`` constants are in scope."""
    constants = {**outer, **constants_of(graph)}
    data = {*given} - constants.keys()
    quotients: dict[str, int] = {}
    found = dict(square_attention(graph, types))
    for index, node in enumerate(graph.node):
        if node.op_type in _EXTENTS or data.isdisjoint((*node.input, *captures(node))):
            continue
        data.update(filter(None, node.output))
        if node.op_type == "Range" and not any(types.is_integer(name) for name in node.input):
            found[index] = "counts in floats that depend on data, where it ends elsewhere"
        if node.op_type == "Hardmax":
            found[index] = "marks another one than the first of equal numbers"
        # The floor of 41 * (1 / 41) is 0. Random samples hold no multiples of the divisor.
        if _is_inexact_quotient(node, types, constants):
            quotients[node.output[0]] = index
        elif _makes_whole(node) and node.input[0] in quotients:
            for each in (quotients[node.input[0]], index):
                found[each] = "is of a quotient that is made with a rounded reciprocal, and rounded down"
        for body in bodies(node):
            inside = data.union(each.name for each in body.input)
            for fault in _faults(body, types.inside(body), inside, constants).values():
                found[index] = f"holds {fault}"
    return {index: f"{_title(graph.node[index])} {found[index]}" for index in sorted(found)}


def _title(node: onnx.NodeProto) -> str:
    return f"{node.op_type} ({node.name})" if node.name else node.op_type


def _is_inexact_quotient(node: onnx.NodeProto, types: Types, constants: Mapping[str, onnx.TensorProto]) -> bool:
    """Whether the node divides floats by constants whose reciprocals are rounded."""
    if node.op_type != "Div" or node.input[1] not in constants or types.is_integer(node.output[0]):
        return False
    divisors = small_array(constants[node.input[1]], MOST_ELEMENTS)
    return divisors is not None and divisors.dtype.kind == "f" and not are_powers_of_two(divisors)


def _makes_whole(node: onnx.NodeProto) -> bool:
    return node.op_type in ("Floor", "Ceil") or (node.op_type == "Cast" and integer(node, "to") in INTEGERS)
