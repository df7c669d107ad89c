"""Walking ONNX graphs with the subgraphs of their nodes (of If, Loop and Scan): names, constants and attributes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import onnx

STANDARD = ("", "ai.onnx")
"""The names of the standard's own domain."""


def opset_of(model: onnx.ModelProto) -> int:
    """The version of the standard's operator set; 0 if the model names none."""
    return next((each.version for each in model.opset_import if each.domain in STANDARD), 0)


def integer(node: onnx.NodeProto, name: str) -> int:
    """The integer attribute of that name; 0 without one."""
    return next((each.i for each in node.attribute if each.name == name), 0)


def constants_of(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """The initializers and the tensors of Constant nodes, by the names of their values."""
    found = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.output:
            found.update((node.output[0], each.t) for each in node.attribute if each.name == "value")
    return found


def set_all(field: Any, items: Iterable[Any]) -> None:
    """Replace the items of a repeated field, in place. ``items`` may be some of the field's own."""
    kept = [*items]
    del field[:]
    field.extend(kept)


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


def rename(nodes: Iterable[onnx.NodeProto], names: Mapping[str, str]) -> None:
    """Rename what the nodes and their subgraphs read and make, in place."""
    for node in nodes:
        for values in (node.input, node.output):
            values[:] = [names.get(name, name) for name in values]
        for body in bodies(node):
            rename(body.node, names)
            for info in body.output:  # it may be a value of the graph around
                info.name = names.get(info.name, info.name)


def operators(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The nodes of a graph that compute something: all but constants."""
    return [node for node in graph.node if node.op_type != "Constant"]
