"""Branches that the model always takes on the user's samples are put in the place of their ``If``.

A voice detector, for example, has a network for each sample rate, which an input chooses. What is left can be placed;
the original model answers calls with another value.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper

from collage.frontend.read.scopes import STANDARD, bodies, reads, rename, set_all
from collage.frontend.read.shapes import model_inputs
from collage.frontend.session import reference_run
from collage.graph.dataflow import Array

log = logging.getLogger(__name__)

_MOST_ELEMENTS = 16
"""An input with more elements than this is data, not a setting."""
_MOST_ROUNDS = 8


@dataclass(frozen=True)
class Taken:
    """The model with branches in the place of their ``If``, which is right where the inputs ``assumed`` are these.

    ``branches`` has the names of these operators, and whether the condition holds.
    """

    model: onnx.ModelProto
    assumed: Mapping[str, Array] = field(default_factory=dict)
    branches: Mapping[str, bool] = field(default_factory=dict)


def taken_branches(model: onnx.ModelProto, samples: Sequence[Mapping[str, Any]]) -> Taken:
    """Replace each ``If`` of the main graph whose condition follows from inputs that are the same in all samples.

    Only small inputs of integers and booleans count. The model is not changed. Without samples, or where ONNX Runtime
    cannot compute the conditions, it is as it was.
    """
    settings = _settings(model, samples)
    if not settings or not any(_is_if(node) for node in model.graph.node):
        return Taken(model)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    assumed: dict[str, Array] = {}
    branches: dict[str, bool] = {}
    for _ in range(_MOST_ROUNDS):  # a branch may have an operator of this kind again
        found = _conditions(copy, settings)
        if not found:
            break
        for name, (holds, needs) in found.items():
            node = next(each for each in copy.graph.node if _is_if(each) and each.output[0] == name)
            branches[node.name or name] = holds
            assumed.update((each, settings[each]) for each in needs)
            _inline(copy.graph, node, holds)
    if not branches:
        return Taken(model)
    _drop_unread(copy.graph)
    return Taken(copy, assumed, branches)


def _is_if(node: onnx.NodeProto) -> bool:
    return node.op_type == "If" and node.domain in STANDARD


def _settings(model: onnx.ModelProto, samples: Sequence[Mapping[str, Any]]) -> dict[str, Array]:
    """The small inputs of integers and booleans that are the same in all samples."""
    found = {}
    for info in model_inputs(model):
        given = [sample.get(info.name) for sample in samples]
        first = given[0] if given else None
        if not isinstance(first, np.ndarray) or first.dtype.kind not in "iub" or first.size > _MOST_ELEMENTS:
            continue
        if all(isinstance(each, np.ndarray) and np.array_equal(each, first) for each in given):
            found[info.name] = first
    return found


def _conditions(model: onnx.ModelProto, settings: Mapping[str, Array]) -> dict[str, tuple[bool, frozenset[str]]]:
    """For each ``If`` that can be decided, by its first output: its condition, and the inputs that it depends on.

    What depends on no input at all is left to whoever folds constants.
    """
    graph = model.graph
    makers = {name: node for node in graph.node for name in node.output if name}
    given = {info.name for info in graph.input}
    known = {each.name for each in graph.initializer}
    nodes: dict[int, onnx.NodeProto] = {}
    wanted: dict[str, tuple[str, frozenset[str]]] = {}
    for node in graph.node:
        if not _is_if(node):
            continue
        waiting, seen, needs, mine = [node.input[0]], set[str](), set[str](), list[onnx.NodeProto]()
        while waiting:
            name = waiting.pop()
            if name in seen or name in known:
                continue
            seen.add(name)
            if name in given:
                needs.add(name)
            elif name in makers and not any(True for _ in bodies(makers[name])):
                mine.append(makers[name])
                waiting += reads(makers[name])
            else:
                needs.add("")  # something that nobody can tell before the call
        if needs and needs <= settings.keys():
            nodes.update((id(each), each) for each in mine)
            wanted[node.output[0]] = node.input[0], frozenset(needs)
    if not wanted:
        return {}
    names = list(dict.fromkeys(name for name, _ in wanted.values()))
    infos = [info for info in graph.input if any(info.name in needs for _, needs in wanted.values())]
    outputs = [helper.make_tensor_value_info(name, onnx.TensorProto.BOOL, None) for name in names]
    read = {name for each in nodes.values() for name in each.input}
    part = helper.make_model(
        helper.make_graph(
            [node for node in graph.node if id(node) in nodes],
            "conditions",
            infos,
            outputs,
            [each for each in graph.initializer if each.name in read],
        ),
        opset_imports=list(model.opset_import),
        ir_version=model.ir_version,
    )
    try:
        values = reference_run(part, {info.name: settings[info.name] for info in infos})
    except Exception as error:  # ONNX Runtime's exceptions share no base class but Exception
        log.info("conditions are not known before a call: %s", error)
        return {}
    holds = {name: bool(np.all(value)) for name, value in zip(names, values, strict=True)}
    return {output: (holds[name], needs) for output, (name, needs) in wanted.items()}


def _inline(graph: onnx.GraphProto, node: onnx.NodeProto, holds: bool) -> None:
    """Put a branch in the place of the node. Names inside of the branch get the node's name before them."""
    wanted = "then_branch" if holds else "else_branch"
    body = onnx.GraphProto()
    body.CopyFrom(next(each.g for each in node.attribute if each.name == wanted))
    prefix = node.name or node.output[0]
    inside = {name for each in body.node for name in each.output if name}
    inside |= {each.name for each in body.initializer}
    names = {name: f"{prefix}/{name}" for name in inside}
    taken: set[str] = set()
    moved: list[onnx.NodeProto] = []
    made = {name for each in body.node for name in each.output}
    for inner, outer in zip(body.output, node.output, strict=True):
        if not outer:
            continue
        if inner.name in made and inner.name not in taken:
            names[inner.name] = outer
        else:  # a value from outside, an initializer, or one that is an output twice
            moved.append(helper.make_node("Identity", [inner.name], [outer], f"{prefix}/{outer}"))
        taken.add(inner.name)
    rename(body.node, names)
    for each in moved:
        each.input[0] = names.get(each.input[0], each.input[0])
    for tensor in body.initializer:
        tensor.name = names[tensor.name]
    place = next(at for at, each in enumerate(graph.node) if each.output[:] == node.output[:])
    set_all(graph.node, [*graph.node[:place], *body.node, *moved, *graph.node[place + 1 :]])
    graph.initializer.extend(body.initializer)


def _drop_unread(graph: onnx.GraphProto) -> None:
    """Drop the nodes whose results nobody reads any more, such as those that have computed a condition."""
    wanted = {info.name for info in graph.output}
    kept = []
    for node in reversed(graph.node):
        if not wanted.isdisjoint(node.output):
            kept.append(node)
            wanted.update(reads(node))
    set_all(graph.node, reversed(kept))
