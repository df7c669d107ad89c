"""Cutting a model in two: the static part, which can be placed, and the tail, which an engine runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import onnx

from collage.frontend.importer import declared_type
from collage.frontend.scopes import reads
from collage.frontend.shapes import model_inputs


@dataclass(frozen=True)
class Split:
    """Two models, the second of which reads what the first gives, and perhaps inputs of the whole.

    Each output of the whole is an output of one of them.
    """

    head: onnx.ModelProto
    tail: onnx.ModelProto


def split(simple: onnx.ModelProto, beyond: Collection[int]) -> Split | None:
    """The nodes ``beyond`` (by index, with all that read their outputs) and the rest of a simplified model.

    Nodes whose outputs have no static type go with the tail, whatever becomes of them. None where no node is left for
    the head, or an output of the model comes from no node.
    """
    graph = simple.graph
    infos = {info.name: info for info in (*graph.input, *graph.value_info, *graph.output)}
    head: list[onnx.NodeProto] = []
    tail: list[onnx.NodeProto] = []
    later: set[str] = set()
    for index, node in enumerate(graph.node):
        static = all(name in infos and declared_type(infos[name]) for name in node.output if name)
        if index in beyond or not static or not later.isdisjoint(reads(node)):
            tail.append(node)
            later.update(node.output)
        else:
            head.append(node)
    made = {name for node in head for name in node.output if name}
    outputs = [info.name for info in graph.output]
    if not head or not all(name in made or name in later for name in outputs):
        return None
    first, second = _read(head), _read(tail)
    wanted = dict.fromkeys(name for name in [*second, *outputs] if name in made)
    given = [info.name for info in model_inputs(simple)]
    crossing = [name for name in second if name in made or name in given]
    return Split(
        _part(simple, head, [infos[n] for n in given if n in first], [infos[n] for n in wanted]),
        _part(
            simple, tail, [infos[n] for n in crossing], [info for info in graph.output if info.name in later]
        ),
    )


def _read(nodes: Iterable[onnx.NodeProto]) -> dict[str, None]:
    return {name: None for node in nodes for name in reads(node)}


def _part(
    model: onnx.ModelProto,
    nodes: list[onnx.NodeProto],
    inputs: Iterable[onnx.ValueInfoProto],
    outputs: Iterable[onnx.ValueInfoProto],
) -> onnx.ModelProto:
    """The model of some of the nodes, with the weights that they read."""
    read = _read(nodes)
    part = onnx.ModelProto(ir_version=model.ir_version, producer_name=model.producer_name)
    part.opset_import.extend(model.opset_import)
    part.functions.extend(model.functions)
    part.graph.name = model.graph.name
    part.graph.node.extend(nodes)
    part.graph.input.extend(inputs)
    part.graph.output.extend(outputs)
    part.graph.initializer.extend(t for t in model.graph.initializer if t.name in read)
    part.graph.sparse_initializer.extend(t for t in model.graph.sparse_initializer if t.values.name in read)
    return part
