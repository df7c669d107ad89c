"""How far a decoder's positions go, and whether q and k of an attention have the same ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from collage.core.printable import printable
from collage.errors import ModelError
from collage.serve.decoder.description import Layer, Rotation
from collage.serve.decoder.onnx_graph import MASK, POSITIONS, OnnxGraph, attribute, described
from collage.serve.decoder.rotary import angles, same_angles

_USUAL_LENGTH = 4096
"""How far angles and lookups are compared where no table of positions ends."""
_LOOKUPS = frozenset("Gather GatherND GatherElements".split())


def check_angles(
    graph: OnnxGraph, layer: Layer, rotation: Rotation | None, length: int | None, tokens: int
) -> None:
    """Raise ModelError where a layer's k has another rotation than its q.

    ``rotation`` is that of k, ``length`` the longest sequence, where a table ends, and ``tokens`` are those that the
    graph is for.
    """
    if rotation == layer.rotation:
        return
    if rotation is None or layer.rotation is None:
        same = False
    else:
        same = same_angles(graph, layer.rotation, rotation, length or _USUAL_LENGTH, tokens)
    if not same:
        raise ModelError(
            f"the attention at {printable(layer.node)} has q and k with different rotary positions, which cannot be "
            "served."
        )


def learned_positions(graph: OnnxGraph, tokens: int, wanted: int | None = None) -> int | None:
    """The positions that the shortest table has a row for, or None where there is none.

    ``tokens`` are those that the graph is for, and ``wanted`` is the longest sequence that is asked for. Raises
    ModelError where positions are looked up in what has an unknown number of rows, or by what cannot be computed.
    """
    offsets = dict.fromkeys((POSITIONS, *graph.places), 0)
    limits = []
    for node in graph.nodes:
        if graph.from_tokens.intersection(node.output):
            continue
        if node.op_type in _LOOKUPS and graph.from_positions.intersection(node.input[1:2]):
            if _is_table(graph, node.input[0], tokens):
                limits += _limits(graph, node, offsets, tokens, wanted)
        else:
            known = [name for name in node.input if name in offsets]
            added = _offset(graph, node) if known else None
            if node.op_type == "Where" and node.input[2] not in offsets:
                continue
            if added is not None:
                offsets.update(dict.fromkeys(node.output, offsets[known[-1]] + added))
    if limits and min(limits) < 1:
        raise ModelError(
            "its positions are beyond the table that they are looked up in, so it cannot be served."
        )
    return min(limits, default=None)


def _is_table(graph: OnnxGraph, name: str, tokens: int) -> bool:
    """Whether a value depends on no input of the model, not even on how long the sequence is."""
    rows = graph.shapes.get(name, (0,))[:1]
    if name in graph.constants and name not in graph.weights:
        return rows not in ((tokens,), graph.shapes.get(MASK, ())[1:])  # as the mask's rows are
    waiting, seen = [name], set()
    while waiting:
        each = waiting.pop()
        if each in graph.inputs or each in graph.places:
            return False
        if each in graph.producers and each not in seen:
            seen.add(each)
            waiting += graph.producers[each].input
    return True


def _limits(
    graph: OnnxGraph, node: onnx.NodeProto, offsets: Mapping[str, int], tokens: int, wanted: int | None
) -> list[int]:
    """The positions that a lookup has rows for, where they end; ``offsets`` are what is added to positions."""
    shape, index = graph.shapes.get(node.input[0]), node.input[1]
    if shape is None:
        raise ModelError(
            f"{described(node)} looks positions up in a table of unknown length, which cannot be served."
        )
    sizes = _indexed(graph, node, shape)
    if index in offsets and len(sizes) == 1:
        return [sizes[0] - offsets[index]]
    length = max(wanted or 0, _USUAL_LENGTH)
    found = angles(graph, index, length, tokens)
    if found is None:
        if wanted is not None:
            return []
        raise ModelError(
            f"{described(node)} looks up positions in a table of unknown length: give the longest sequence with "
            "--max-length."
        )
    rows: NDArray[Any] = found.reshape(length, -1, len(sizes))
    ends = np.array(sizes)
    beyond = ((rows >= ends) | (rows < -ends)).any((1, 2))
    return [int(beyond.argmax())] if beyond.any() else []


def _indexed(graph: OnnxGraph, node: onnx.NodeProto, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes of the axes that the elements of an index count along."""
    if node.op_type == "GatherND":
        first, several = attribute(node, "batch_dims", 0), graph.shapes.get(node.input[1], (1,))[-1]
        assert isinstance(first, int)
        return shape[first : first + several]
    axis = attribute(node, "axis", 0)
    assert isinstance(axis, int)
    return (shape[axis],)


def _offset(graph: OnnxGraph, node: onnx.NodeProto) -> int | None:
    """What a node adds to the last of its inputs that are positions; None where it does something else with them."""
    if node.op_type == "Where":
        condition = graph.producers.get(node.input[0])
        if condition is None or condition.op_type != "Less" or condition.input[0] != node.input[2]:
            return None
        return 0 if graph.scalar(condition.input[1]) == 0 else None  # the others are rows from a table's end
    if node.op_type in ("Transpose", "Unsqueeze", "Squeeze", "Cast", "Identity", "Reshape", "Expand"):
        return 0
    if node.op_type in ("Add", "Sub"):
        numbers = [graph.scalar(name) for name in node.input]
        found = [int(number) for number in numbers if number is not None and np.isfinite(number)]
        if len(found) == 1 and (node.op_type == "Add" or numbers[0] is None):
            return found[0] if node.op_type == "Add" else -found[0]
    return None
