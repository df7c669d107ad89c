"""Decoders in the form that serving reads: in float32, without a branch for the cache, and with nodes in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

import onnx
from onnx import TensorProto, helper

from collage.core.printable import printable
from collage.errors import ModelError
from collage.frontend.read.load import ModelSource, as_written
from collage.frontend.read.widen import computes_in, widen
from collage.serve.decoder.onnx_graph import attribute

_NARROW = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
_BRANCH = "use_cache_branch"
"""The input of optimum's merged decoders that tells whether there is a cache."""


def in_normal_form(source: ModelSource) -> ModelSource:
    """The model in that form, or the source itself if it has it.

    A decoder in float16 or bfloat16 keeps its weights, and the one that is made rounds values to float32 only. Of a
    merged decoder the branch with a cache is taken, which may be empty. Where the order of the largest elements is left
    open, as in DeepSeek-V3's choice of experts, they are sorted, as kernels expect it. Raises ModelError for what is no
    ONNX model, and for operators that are none of ONNX's, such as the contrib operators of ONNX Runtime.
    """
    model = as_written(source)
    without_branch = _without_branch(model)
    _refuse_foreign(model.graph.node)
    changed = [without_branch, _with_nodes_in_order(model), _with_sorted_choices(model)]
    if computes_in(model, _NARROW):
        widen(model, _NARROW, TensorProto.FLOAT)
        changed.append(True)
    return model if any(changed) else source


def _refuse_foreign(nodes: Iterable[onnx.NodeProto]) -> None:
    """Raise ModelError for operators that ONNX does not have: of these, nothing is known but their names."""
    foreign = [
        node for node in nodes if not onnx.defs.has(node.op_type, "" if node.domain == "ai.onnx" else node.domain)
    ]
    if not foreign:
        return
    first, *others = dict.fromkeys(f"{node.domain}.{node.op_type}".lstrip(".") for node in foreign)
    more = f" (there are also {printable(', '.join(others))})" if others else ""
    raise ModelError(
        f"node {printable(foreign[0].name or foreign[0].output[0])} ({printable(first)}) cannot be served: it is no "
        f"operator of ONNX{more}. Served are decoders without contrib operators, as optimum-onnx and torch.onnx export "
        "them; the builder of ONNX Runtime GenAI and ONNX Runtime's optimizer write such operators."
    )


def _without_branch(model: onnx.ModelProto) -> bool:
    """Put the branch with a cache in the place of the choice; whether there was one."""
    graph = model.graph
    given = [info for info in graph.input if info.name == _BRANCH]
    if not given:
        return False
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        branch = attribute(node, "then_branch") if node.op_type == "If" and node.input[0] == _BRANCH else None
        if isinstance(branch, onnx.GraphProto):
            graph.initializer.extend(branch.initializer)
            nodes += _inlined(branch, node)
        else:
            nodes.append(node)
    if any(_BRANCH in node.input for node in nodes):
        return False  # it decides about something else, too; the input is refused by its name
    del graph.node[:]
    graph.node.extend(nodes)
    graph.input.remove(given[0])
    return True


def _inlined(branch: onnx.GraphProto, choice: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    made = {name for node in branch.node for name in node.output}
    outputs = [info.name for info in branch.output]
    names = {inner: outer for inner, outer in zip(outputs, choice.output, strict=True) if inner in made and outer}
    for node in branch.node:
        yield _renamed(node, names)
    for inner, outer in zip(outputs, choice.output, strict=True):
        if outer and names.get(inner) != outer:
            yield helper.make_node("Identity", [names.get(inner, inner)], [outer])


def _renamed(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    changed = onnx.NodeProto()
    changed.CopyFrom(node)
    changed.input[:] = [names.get(name, name) for name in node.input]
    changed.output[:] = [names.get(name, name) for name in node.output]
    return changed


def _with_nodes_in_order(model: onnx.ModelProto) -> bool:
    """Put nodes behind those whose values they read; whether some were not. Some converters append nodes."""
    graph = model.graph
    makers = {name: place for place, node in enumerate(graph.node) for name in node.output if name}
    before = {place: {makers[name] for name in node.input if name in makers} for place, node in enumerate(graph.node)}
    if all(other < place for place, others in before.items() for other in others):
        return False
    try:
        order = list(TopologicalSorter(before).static_order())
    except CycleError:
        return False  # whoever reads the model refuses it
    nodes = [_renamed(graph.node[place], {}) for place in order]
    del graph.node[:]
    graph.node.extend(nodes)
    return True


def _with_sorted_choices(model: onnx.ModelProto) -> bool:
    """Let each TopK sort what it gives; whether some did not."""
    unsorted = [
        each
        for node in model.graph.node
        if node.op_type == "TopK"
        for each in node.attribute
        if each.name == "sorted" and not each.i
    ]
    for each in unsorted:
        each.i = 1
    return bool(unsorted)
