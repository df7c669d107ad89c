"""Following q, k and v of an attention back to where they come from: past shapes, scales, rotations and the cache."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx

from collage.core.printable import printable
from collage.errors import ModelError
from collage.serve.decoder.description import Rotation, Source
from collage.serve.decoder.onnx_graph import OnnxGraph, attribute, described
from collage.serve.decoder.rotary import read_rotation

_MOVES = frozenset("Transpose Reshape Unsqueeze Squeeze Expand Identity Flatten".split())


@dataclass(frozen=True)
class Origin:
    """Where an operand comes from, and what happens to it on the way.

    ``factor`` is the product of its scales, ``past`` the cache that it is appended to, or "".
    """

    source: Source
    factor: float = 1.0
    past: str = ""
    rotation: Rotation | None = None


@dataclass(frozen=True)
class _Step:
    """How far the way back has come."""

    value: str
    factor: float = 1.0
    past: str = ""
    rotation: Rotation | None = None
    offset: int = 0
    width: int | None = None


def origin_of(graph: OnnxGraph, value: str, node: onnx.NodeProto, tokens: int) -> Origin:
    """Where an operand of the attention at ``node`` comes from. Raises ModelError, which names the node."""
    step, before = _Step(value), None
    while step != before:
        before = step
        step = _back(graph, step, node)
    shape = graph.shapes.get(step.value)
    maker = graph.producers.get(step.value)
    if maker is None or shape is None or step.value not in graph.from_tokens:
        what = printable(step.value) if maker is None else described(maker)
        raise ModelError(
            f"{what} is no product of the tokens whose rows are known, and {described(node)} attends to it: "
            "this is no form of attention that can be served."
        )
    by_head = len(shape) == 4 and shape[0] == 1 and shape[2] == tokens and shape[1] != tokens
    if not by_head and next((size for size in shape if size != 1), 1) != tokens:
        raise ModelError(
            f"{described(maker)} gives {'x'.join(map(str, shape))}, not a row for each token, and {described(node)} "
            "attends to it: this is no form of attention that can be served."
        )
    whole = int(np.prod(shape)) // tokens
    source = Source(step.value, step.offset, whole if step.width is None else step.width, by_head)
    return Origin(source, step.factor, step.past, step.rotation)


def _back(graph: OnnxGraph, step: _Step, at: onnx.NodeProto) -> _Step:
    """One step back, or the same step where there is none."""
    node = graph.producers.get(step.value)
    if node is None or node.domain not in ("", "ai.onnx"):
        return step
    if node.op_type in _MOVES or _expands(graph, node):
        return replace(step, value=node.input[0]) if _keeps_columns(graph, step, node) else step
    if node.op_type == "Cast":
        return replace(step, value=_before_casts(graph, step.value))
    if node.op_type in ("Mul", "Div"):
        return _scaled(graph, step, node)
    if node.op_type == "Concat":
        names = [_before_casts(graph, name) for name in node.input]
        if len(names) == 2 and names[0] in graph.inputs and names[1] not in graph.inputs:
            if step.past:
                raise ModelError(f"{described(node)} appends to a second cache before {described(at)}.")
            return replace(step, value=node.input[1], past=names[0])
    if step.rotation is None and node.op_type in ("Add", "Concat", "RotaryEmbedding"):
        found = read_rotation(graph, node)
        return step if found is None else replace(step, value=found.value, rotation=found.rotation)
    if node.op_type == "Split" and step.width is None:
        return _column_part(graph, step, node)
    return step


def _expands(graph: OnnxGraph, node: onnx.NodeProto) -> bool:
    """Whether a node repeats axes of one element only, as Expand does: with others, heads would be in another order."""
    before, after = (graph.shapes.get(name) for name in (node.input[0], node.output[0]))
    if node.op_type != "Tile" or before is None or after is None:
        return False
    return all(size in (1, grown) for size, grown in zip(before, after, strict=True))


def _before_casts(graph: OnnxGraph, name: str) -> str:
    """The value itself, or the one that is cast to it without a change."""
    node = graph.producers.get(name)
    while (
        node is not None
        and node.op_type == "Cast"
        and graph.dtypes.get(node.input[0]) == graph.dtypes.get(name)
    ):
        name = node.input[0]
        node = graph.producers.get(name)
    return name


def _keeps_columns(graph: OnnxGraph, step: _Step, node: onnx.NodeProto) -> bool:
    """Whether what is known of columns so far holds for the node's input, too."""
    if step.width is None:
        return True
    before, after = (graph.shapes.get(name) for name in (node.input[0], node.output[0]))
    return node.op_type == "Reshape" and before is not None and after is not None and before[-1] == after[-1]


def _scaled(graph: OnnxGraph, step: _Step, node: onnx.NodeProto) -> _Step:
    for place, other in ((0, 1), (1, 0)) if node.op_type == "Mul" else ((0, 1),):
        number = graph.scalar(node.input[other])
        if number is not None and node.input[place] in graph.from_tokens:
            factor = step.factor * (number if node.op_type == "Mul" else 1 / number)
            return replace(step, value=node.input[place], factor=factor)
    return step


def _column_part(graph: OnnxGraph, step: _Step, node: onnx.NodeProto) -> _Step:
    """Through a Split of the columns of one value that has a row for each token."""
    shape = graph.shapes.get(node.input[0])
    axis = attribute(node, "axis", 0)
    assert isinstance(axis, int)
    if shape is None or axis % len(shape) != len(shape) - 1 or any(n != 1 for n in shape[:-2]):
        return step
    widths = [graph.shapes[name][-1] for name in node.output if name in graph.shapes]
    if len(widths) != len(node.output):
        return step
    place = list(node.output).index(step.value)
    return replace(step, value=node.input[0], offset=sum(widths[:place]), width=widths[place])
