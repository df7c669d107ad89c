"""Sizes that engines do not check: those that callers choose, and those that no operator can have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from collage.frontend.read.scopes import all_nodes, reads

_SIZES: Mapping[str, Sequence[int]] = {
    **dict.fromkeys(("AffineGrid", "CenterCropPad", "Expand", "Reshape", "Split", "SplitToSequence", "Tile"), (1,)),
    **dict.fromkeys(("CumProd", "CumSum", "Squeeze", "Trilu", "Unsqueeze", "Upsample"), (1,)),
    "Col2Im": (1, 2),
    "MaxUnpool": (1, 2),
    "Pad": (1, 3),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
}
"""Positions of operands, by operator, that are sizes or axes and may not fit the data. Indices are checked elsewhere
(see ``index_limits``), and any size fits a Range or a OneHot."""

_EXTENTS = frozenset({"Shape", "Size"})
"""Operators whose results depend on extents only, which engines know."""


_SIZE_ATTRIBUTES = frozenset(
    "block_size blocksize dilations group kernel_shape num_groups num_outputs output_height output_width "
    "pooled_shape size strides".split()
)
"""Attributes that are numbers of elements or of steps, of which there is at least one (or no blocks)."""


def impossible_size(model: onnx.ModelProto) -> str:
    """The first operator with a size below 1 among its attributes, such as ``RoiAlign output_width=0``, or ""."""
    for node in all_nodes(model.graph):
        for attribute in node.attribute:
            if attribute.name not in _SIZE_ATTRIBUTES:
                continue
            sizes = [*attribute.ints, *([attribute.i] if attribute.type == onnx.AttributeProto.INT else [])]
            least = 0 if attribute.name == "block_size" else 1  # 0 is its default: there are no blocks
            if any(size < least for size in sizes):
                return f"{node.op_type} {attribute.name}={min(sizes)}"
    return ""


def free_size(model: onnx.ModelProto) -> str:
    """The type and name of the first operator whose sizes a caller may choose, or "" if there is none."""
    initial = {tensor.name for tensor in model.graph.initializer}
    free = {info.name for info in model.graph.input} - initial
    for node in all_nodes(model.graph):
        if free.intersection(node.input[p] for p in _SIZES.get(node.op_type, ()) if p < len(node.input)):
            return f"{node.op_type} {node.name}".strip()
        if node.op_type not in _EXTENTS and free.intersection(reads(node)):
            free.update(filter(None, node.output))  # an omitted operand has no name, as an omitted output has none
            for attribute in node.attribute:  # the inputs of the bodies of loops
                free.update(info.name for info in attribute.g.input)
    return ""
