"""Sizes that callers give: operators that make tensors of extents that are calculated from the values of inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from collage.frontend.scopes import all_nodes, reads

_SIZES: Mapping[str, Sequence[int]] = {
    **dict.fromkeys(
        ("AffineGrid", "CenterCropPad", "Expand", "Reshape", "Split", "SplitToSequence", "Tile"), (1,)
    ),
    **dict.fromkeys(("CumProd", "CumSum", "Squeeze", "Trilu", "Unsqueeze", "Upsample"), (1,)),
    "Col2Im": (1, 2),
    "MaxUnpool": (1, 2),
    "Pad": (1, 3),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
}
"""Operands, by operator, that say what the data must fit, or may not fit it. Indices have checks of their own (see
``index_limits``); the sizes of a Range or a OneHot fit anything."""

_EXTENTS = frozenset({"Shape", "Size"})
"""What they give depends on extents only, which engines look after."""


def free_size(model: onnx.ModelProto) -> str:
    """The first operator whose sizes are calculated from values that a caller may choose, or ""."""
    initial = {tensor.name for tensor in model.graph.initializer}
    free = {info.name for info in model.graph.input} - initial
    for node in all_nodes(model.graph):
        if free.intersection(node.input[p] for p in _SIZES.get(node.op_type, ()) if p < len(node.input)):
            return f"{node.op_type} {node.name}".strip()
        if node.op_type not in _EXTENTS and free.intersection(reads(node)):
            free.update(node.output)
            for attribute in node.attribute:  # what the bodies of loops are given
                free.update(info.name for info in attribute.g.input)
    return ""
