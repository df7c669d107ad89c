"""Decoders whose mixtures of experts have fixed shapes."""

from __future__ import annotations

import onnx
from onnx import helper

from collage.serve.decoder.experts.dense import dense_mixtures
from collage.serve.decoder.experts.product import DOMAIN
from collage.serve.decoder.experts.read import mixtures
from collage.serve.decoder.experts.sorted import sorted_mixtures
from collage.serve.decoder.experts.write import Written, write
from collage.serve.decoder.onnx_graph import GraphSizes, read_graph

_READERS = (mixtures, dense_mixtures, sorted_mixtures)
_OLDEST_SET = 13
"""The operator set since which the axes of a sum are an input."""


def with_fixed_shapes(model: onnx.ModelProto, probe: GraphSizes) -> onnx.ModelProto:
    """The model with its loops over experts as products that choose their matrix; the model itself without any.

    A loop that is not understood stays: its operators are refused by their names later.
    """
    sets = [each.version for each in model.opset_import if each.domain in ("", "ai.onnx")]
    if min(sets, default=0) < _OLDEST_SET or all(node.op_type != "TopK" for node in model.graph.node):
        return model
    graph = read_graph(model, probe)
    found: dict[str, Written] = {}
    for mixture in (each for read in _READERS for each in read(graph, probe.tokens)):
        written = write(mixture, graph)
        if written is not None:
            found[mixture.made] = written
    if not found:
        return model
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        made = [name for name in node.output if name in found]
        nodes += found[made[0]].nodes if made else [node]
    nodes = _needed(nodes, [each.name for each in model.graph.output])
    read = {name for node in nodes for name in node.input}
    weights = [each for each in model.graph.initializer if each.name in read]
    weights += [each for written in found.values() for each in written.constants]
    changed = helper.make_graph(
        nodes, model.graph.name, model.graph.input, model.graph.output, value_info=model.graph.value_info
    )
    sets_with_products = [*model.opset_import, helper.make_opsetid(DOMAIN, 1)]
    whole = helper.make_model(changed, opset_imports=sets_with_products, ir_version=model.ir_version)
    whole.graph.initializer.extend(weights)  # each copy of them takes seconds
    return whole


def _needed(nodes: list[onnx.NodeProto], outputs: list[str]) -> list[onnx.NodeProto]:
    """The nodes on which the outputs depend, in order."""
    wanted, kept = set(outputs), []
    for node in reversed(nodes):
        if wanted.intersection(node.output):
            wanted.update(node.input)
            kept.append(node)
    return kept[::-1]
