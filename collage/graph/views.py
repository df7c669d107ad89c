"""Views: operators that do no work, because their results are in memory already, with other axes or as parts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from collage.graph.dataflow import Graph, Node
from collage.graph.storage import STORAGES, Storage, stored_type

PART_BYTES = 64
"""Parts begin at multiples of so many bytes, because kernels may rely on the alignment of their buffers."""

RENAMING = frozenset("reshape flatten squeeze expand_dims".split())
"""Operators that only rename the axes of a dense tensor, so that the output is the input's memory."""


def is_view(graph: Graph, node: Node) -> bool:
    """Whether the node only renames axes of one tensor (see RENAMING)."""
    if node.op not in RENAMING or len(node.outputs) != 1:
        return False
    return graph.type_of(node.inputs[0]).size == graph.type_of(node.outputs[0]).size


def free_storages(graph: Graph, node: Node, storages: Sequence[Storage] = STORAGES) -> tuple[Storage, ...]:
    """The ones of ``storages`` in which the node costs nothing.

    A split costs nothing where each result is contiguous in the input. A concatenation costs nothing where each input
    is contiguous in the result, and the kernel that makes it can write it there. Both are so along the outermost axis
    that is longer than 1. For a single picture these are the channels, plain or in blocks.
    """
    if is_view(graph, node):
        kinds = [graph.type_of(v) for v in (node.inputs[0], *node.outputs)]
        return tuple(
            each for each in storages if each.format.in_order and not any(each.format.problem(kind) for kind in kinds)
        )
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
    axis %= len(graph.type_of(whole).shape)
    return tuple(each for each in storages if _in_pieces(graph, whole, parts, axis, each))


def _in_pieces(graph: Graph, whole: int, parts: tuple[int, ...], axis: int, storage: Storage) -> bool:
    """Whether the parts follow each other in the whole value, and each begins at a multiple of PART_BYTES."""
    kinds = [graph.type_of(v) for v in (whole, *parts)]
    if any(storage.format.problem(each) for each in kinds):
        return False
    joined = storage.format.joined_axis(kinds[1:], axis)
    if joined is None or math.prod(stored_type(kinds[0], storage).shape[:joined]) != 1:
        return False
    sizes = [stored_type(each, storage).nbytes for each in kinds[1:]]
    return all(sizes) and not any(size % PART_BYTES for size in sizes[:-1])


def _joinable(graph: Graph, node: Node) -> bool:
    """Whether the inputs of a concatenation can be made as its parts.

    Each has to come from a kernel of its own, and no concatenation before this one may read it.
    """
    bases = [_base(graph, v) for v in node.inputs]
    if len(set(bases)) < len(bases):
        return False
    for base in bases:
        producer = graph.values[base].producer
        if producer is None or graph.nodes[producer].op == "split":
            return False
    return all(_first_join(graph, base) == node.id for base in bases)


def _first_join(graph: Graph, value: int) -> int:
    """The first concatenation that reads the value, or a view of it."""
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
    """The value whose axes this one renames, or the value itself."""
    producer = graph.values[value].producer
    if producer is None or not is_view(graph, graph.nodes[producer]):
        return value
    return _base(graph, graph.nodes[producer].inputs[0])


def _is_used(graph: Graph, value: int) -> bool:
    return bool(graph.users[value]) or value in graph.output_set
