"""The values by which tokens choose experts."""

from __future__ import annotations

from collage.serve.decoder.onnx_graph import OnnxGraph, attribute


def experts_chosen_from(graph: OnnxGraph, tokens: int, name: str) -> int:
    """The number of experts of which a value [tokens, slots] has different ones for each token, 0 for another value.

    They are the places of the largest or least of as many scores, and so all of them below that number.
    """
    node = graph.producers.get(name)
    if node is None or node.op_type != "TopK" or list(node.output).index(name) != 1:
        return 0
    shape, scores = (graph.shapes.get(each, ()) for each in (name, node.input[0]))
    by_token = len(shape) == len(scores) == 2 and shape[0] == scores[0] == tokens
    return scores[1] if by_token and attribute(node, "axis", -1) in (-1, 1) else 0
