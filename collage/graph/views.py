"""Operators that do no work where their results lie in the right place: renamed axes, and parts side by side."""

from __future__ import annotations

import math

from collage.graph.dataflow import Graph, Node
from collage.graph.layout import BLOCK, Layout, has_channels, stored_type

PART_BYTES = 64
"""Parts begin at multiples of it: kernels may rely on the alignment of their buffers."""

RENAMING = frozenset("reshape flatten squeeze expand_dims".split())
"""Operators that only rename the axes of a dense tensor: the output is the input's memory."""


def is_view(graph: Graph, node: Node) -> bool:
    """Whether the node only renames axes of one tensor (see RENAMING)."""
    if node.op not in RENAMING or len(node.outputs) != 1:
        return False
    return graph.type_of(node.inputs[0]).size == graph.type_of(node.outputs[0]).size


def free_layouts(graph: Graph, node: Node) -> tuple[Layout, ...]:
    """The layouts in which the node costs nothing, or none.

    A concatenation costs nothing where what it joins lies in one piece each and can be written there by whoever makes
    it, and a split where the results do: along the outermost axis that is longer than 1. With one picture, that is
    the channels, plain or in blocks.
    """
    if is_view(graph, node):
        return (Layout.PLAIN,)
    if node.op == "concat":
        whole, parts = node.outputs[0], node.inputs
        if not _joinable(graph, node):
            return ()
    elif node.op == "split":
        whole, parts = node.inputs[0], node.outputs
        if graph.is_constant(whole) or any(not _is_used(graph, v) for v in parts):
            return ()
    else:
        return ()
    axis = node.attrs.get("axis")
    if not isinstance(axis, int) or len(parts) < 2:
        return ()
    rank = len(graph.type_of(whole).shape)
    layouts = tuple(Layout) if has_channels(graph.type_of(whole)) else (Layout.PLAIN,)
    return tuple(each for each in layouts if _in_pieces(graph, whole, parts, axis % rank, each))


def _in_pieces(graph: Graph, whole: int, parts: tuple[int, ...], axis: int, layout: Layout) -> bool:
    """Whether the parts lie one after another in the whole, each from a multiple of PART_BYTES on."""
    rank = len(graph.type_of(whole).shape)
    if layout is Layout.BLOCKED and axis == 1 and any(graph.type_of(v).shape[1] % BLOCK for v in parts[:-1]):
        return False
    stored_axis = axis
    if layout is Layout.CHANNELS_LAST and axis > 0:
        stored_axis = rank - 1 if axis == 1 else axis - 1
    if math.prod(stored_type(graph.type_of(whole), layout).shape[:stored_axis]) != 1:
        return False
    sizes = [stored_type(graph.type_of(v), layout).nbytes for v in parts]
    return all(sizes) and not any(size % PART_BYTES for size in sizes[:-1])


def _joinable(graph: Graph, node: Node) -> bool:
    """Whether what is joined can be made in its place: each by a kernel of its own, and joined nowhere else before."""
    bases = [_base(graph, v) for v in node.inputs]
    if len(set(bases)) < len(bases):
        return False
    for base in bases:
        producer = graph.values[base].producer
        if producer is None or graph.nodes[producer].op == "split":
            return False
    return all(_first_join(graph, base) == node.id for base in bases)


def _first_join(graph: Graph, value: int) -> int:
    """The first concatenation that reads the value, under whatever name."""
    found: list[int] = []
    names = [value]
    while names:
        for user in graph.users[names.pop()]:
            if is_view(graph, graph.nodes[user]):
                names.append(graph.nodes[user].outputs[0])
            elif graph.nodes[user].op == "concat":
                found.append(user)
    return min(found)


def _base(graph: Graph, value: int) -> int:
    """The value that this one is another name of."""
    producer = graph.values[value].producer
    if producer is None or not is_view(graph, graph.nodes[producer]):
        return value
    return _base(graph, graph.nodes[producer].inputs[0])


def _is_used(graph: Graph, value: int) -> bool:
    return bool(graph.users[value]) or value in graph.output_set
