"""How far a decoder's positions go, and whether all of its attention has the same ones."""

from __future__ import annotations

import numpy as np
import onnx

from collage.core.printable import printable
from collage.errors import ModelError
from collage.serve.decoder.description import Layer, Rotation
from collage.serve.decoder.onnx_graph import POSITIONS, OnnxGraph, attribute, described
from collage.serve.decoder.rotary import same_angles

_USUAL_LENGTH = 4096
"""How far angles are compared where no table of positions ends."""


def check_angles(
    graph: OnnxGraph, layers: tuple[Layer, Layer], rotation: Rotation | None, length: int | None, tokens: int
) -> None:
    """Raise ModelError where a rotation of q or k of the second layer is another one than that of the first layer's q.

    ``length`` is the longest sequence, where a table ends, and ``tokens`` are those that the graph is for.
    """
    first, layer = layers
    if rotation == first.rotation:
        return
    if rotation is None or first.rotation is None:
        same = False
    else:
        same = same_angles(graph, first.rotation, rotation, length or _USUAL_LENGTH, tokens)
    if not same:
        raise ModelError(
            f"the attention at {printable(layer.node)} has q or k with other rotary positions than that at "
            f"{printable(first.node)}: positions of several kinds cannot be served."
        )


def learned_positions(graph: OnnxGraph) -> int | None:
    """The positions that the shortest table has a row for, or None where there is none.

    Raises ModelError where positions are looked up in what has an unknown number of rows.
    """
    offsets = dict.fromkeys((POSITIONS, *graph.places), 0)
    limits = []
    for node in graph.nodes:
        if graph.from_tokens.intersection(node.output):
            continue
        if node.op_type == "Gather" and node.input[1] in offsets:
            size = graph.shapes.get(node.input[0])
            axis = attribute(node, "axis", 0)
            assert isinstance(axis, int)
            if size is None:
                raise ModelError(
                    f"{described(node)} looks positions up in a table of unknown length, which cannot be served."
                )
            limits.append(size[axis] - offsets[node.input[1]])
        else:
            known = [name for name in node.input if name in offsets]
            added = _offset(graph, node) if known else None
            if added is not None:
                offsets.update(dict.fromkeys(node.output, offsets[known[0]] + added))
    if limits and min(limits) < 1:
        raise ModelError(
            "its positions are beyond the table that they are looked up in, so it cannot be served."
        )
    return min(limits, default=None)


def _offset(graph: OnnxGraph, node: onnx.NodeProto) -> int | None:
    """What a node adds to positions, or None where it does something else with them."""
    if node.op_type in ("Unsqueeze", "Squeeze", "Cast", "Identity", "Reshape", "Expand"):
        return 0
    if node.op_type in ("Add", "Sub"):
        numbers = [graph.scalar(name) for name in node.input]
        found = [int(number) for number in numbers if number is not None and np.isfinite(number)]
        if len(found) == 1 and (node.op_type == "Add" or numbers[0] is None):
            return found[0] if node.op_type == "Add" else -found[0]
    return None
