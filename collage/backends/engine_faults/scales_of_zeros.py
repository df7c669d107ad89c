"""Whether it shows which scale an engine gives to a DynamicQuantizeLinear of zeros: 1 as ONNX Runtime, or another one.

It does not where the scale is multiplied with nothing but what has been made of the integers, which are zeros then.
"""

from __future__ import annotations

import onnx

from collage.frontend.read.scopes import captures

_PRODUCTS = frozenset(["ConvInteger", "MatMulInteger"])


def scale_shows(graph: onnx.GraphProto, quantizer: onnx.NodeProto) -> bool:
    """Whether the scale of that DynamicQuantizeLinear of the graph has an effect where all data is zero."""
    if len(quantizer.output) < 2 or not quantizer.output[1]:
        return False
    constants = {tensor.name for tensor in graph.initializer}
    constants.update(node.output[0] for node in graph.node if node.op_type == "Constant")
    zeros = _made_of_integers(graph, quantizer)
    scales, others = {quantizer.output[1]}, {each.name for each in graph.output}
    for node in graph.node:
        found = scales.intersection(node.input)
        others.update(captures(node))
        if not found or (node.op_type == "Mul" and zeros.intersection(node.input)):
            continue
        if node.op_type == "Mul" and constants.intersection(node.input):
            scales.add(node.output[0])
        elif node.op_type != "DequantizeLinear" or node.input[0] != quantizer.output[0]:
            return True
    return not scales.isdisjoint(others)


def _made_of_integers(graph: onnx.GraphProto, quantizer: onnx.NodeProto) -> set[str]:
    """The names of products of the integers with weights, and of these as floats."""
    integers, zero_points = quantizer.output[0], (*quantizer.output[2:], "")
    made: set[str] = set()
    for node in graph.node:
        read = [*node.input, "", "", ""]
        product = node.op_type in _PRODUCTS and read[0] == integers and read[2] in zero_points
        if product or (node.op_type == "Cast" and read[0] in made):
            made.update(node.output)
    return made
