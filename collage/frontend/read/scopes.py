"""The names that ONNX nodes read and define, with those in their subgraphs (of If, Loop and Scan)."""

from __future__ import annotations

from collections.abc import Iterator

import onnx


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The node's subgraphs, without the subgraphs of these."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            yield from attribute.graphs


def all_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The graph's nodes and those of all subgraphs."""
    nodes = list(graph.node)
    for node in graph.node:
        for body in bodies(node):
            nodes += all_nodes(body)
    return nodes


def all_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The graph and all its subgraphs."""
    yield graph
    for node in all_nodes(graph):
        yield from bodies(node)


def defines(body: onnx.GraphProto) -> frozenset[str]:
    """The names that the subgraph's own scope defines."""
    names = {each.name for each in [*body.input, *body.initializer]}
    names |= {each.values.name for each in body.sparse_initializer}
    return frozenset(names | {name for node in body.node for name in node.output})


def captures(node: onnx.NodeProto) -> dict[str, None]:
    """The names of the outer scope that the node's subgraphs read, each once, in order."""
    found: dict[str, None] = {}
    for body in bodies(node):
        inner = defines(body)
        for each in body.node:
            found.update(dict.fromkeys(name for name in reads(each) if name not in inner))
        found.update(dict.fromkeys(out.name for out in body.output if out.name not in inner))
    return found


def reads(node: onnx.NodeProto) -> dict[str, None]:
    """The names that the node reads: its inputs, then those that its subgraphs capture; each once."""
    return {**dict.fromkeys(name for name in node.input if name), **captures(node)}
