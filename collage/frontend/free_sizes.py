"""Sizes that callers give: operators that make tensors of extents that are calculated from the values of inputs."""

from __future__ import annotations

import onnx

from collage.frontend.scopes import all_nodes, reads

_SIZES = {"Reshape": 1, "AffineGrid": 1, "Split": 1, "SplitToSequence": 1, "Col2Im": 1, "MaxUnpool": 2}
"""Operators whose operand of that number must fit the others, or what it says is impossible."""

_EXTENTS = frozenset({"Shape", "Size"})
"""What they give depends on extents only, which engines look after."""


def free_size(model: onnx.ModelProto) -> str:
    """The first operator whose sizes are calculated from values that a caller may choose, or ""."""
    initial = {tensor.name for tensor in model.graph.initializer}
    free = {info.name for info in model.graph.input} - initial
    for node in all_nodes(model.graph):
        position = _SIZES.get(node.op_type)
        if position is not None and len(node.input) > position and node.input[position] in free:
            return f"{node.op_type} {node.name}".strip()
        if node.op_type not in _EXTENTS and free.intersection(reads(node)):
            free.update(node.output)
            for attribute in node.attribute:  # what the bodies of loops are given
                free.update(info.name for info in attribute.g.input)
    return ""
