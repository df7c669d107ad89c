"""Cutting a model in two: the static prefix, which can be placed, and the dynamic suffix, which an engine runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import onnx

from collage.frontend.read.scopes import reads
from collage.frontend.read.shapes import model_inputs
from collage.frontend.relax.importer import declared_type


@dataclass(frozen=True)
class Split:
    """The two parts of a model. The suffix reads outputs of the prefix, and perhaps inputs of the whole model.

    Each output of the whole model is an output of one of the two.
    """

    prefix: onnx.ModelProto
    suffix: onnx.ModelProto


def split(simple: onnx.ModelProto, beyond: Collection[int]) -> Split | None:
    """Split a simplified model: the suffix gets the nodes ``beyond``, by index, and all that read their outputs.

    Nodes whose outputs have no static type go to the suffix, too. The result is None if no node is left for the
    prefix, or where no node makes an output of the model. ``simple`` is not changed.
    """
    graph = simple.graph
    infos = {info.name: info for info in (*graph.input, *graph.value_info, *graph.output)}
    prefix: list[onnx.NodeProto] = []
    suffix: list[onnx.NodeProto] = []
    later: set[str] = set()
    for index, node in enumerate(graph.node):
        static = all(name in infos and declared_type(infos[name]) for name in node.output if name)
        if index in beyond or not static or not later.isdisjoint(reads(node)):
            suffix.append(node)
            later.update(node.output)
        else:
            prefix.append(node)
    made = {name for node in prefix for name in node.output if name}
    outputs = [info.name for info in graph.output]
    if not prefix or not all(name in made or name in later for name in outputs):
        return None
    first, second = _read(prefix), _read(suffix)
    wanted = dict.fromkeys(name for name in [*second, *outputs] if name in made)
    inputs = [info.name for info in model_inputs(simple)]
    crossing = [name for name in second if name in made or name in inputs]
    last = [info for info in graph.output if info.name in later]
    return Split(
        _part(simple, prefix, [infos[name] for name in inputs if name in first], [infos[n] for n in wanted]),
        _part(simple, suffix, [infos[name] for name in crossing], last),
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
