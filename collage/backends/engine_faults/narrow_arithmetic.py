"""Operators that an engine of narrow arithmetic gets wrong: one that computes integers in 32 bits or in float32, and
float64 in float32.

OpenVINO turns 64-bit integers into 32-bit ones as soon as an operator has read them. It divides, compares and reduces
32-bit integers in float32, which has 24 bits, and it saturates 8-bit ones. TensorRT is no wider. Values with small
bounds are right there: indices, extents, constants, and what is calculated from these.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping

import onnx
import onnx.inliner
from google.protobuf.message import EncodeError
from onnx import TensorProto

from collage.backends.engine_faults.narrow_patterns import rewritten, scale_shows
from collage.backends.engine_faults.rounding_sums import rounding_sums
from collage.backends.engine_faults.square_attention import square_attention
from collage.frontend.read.index_limits import index_limits
from collage.frontend.read.proto_size import bytes_of
from collage.frontend.read.scopes import bodies, captures
from collage.frontend.read.shapes import infer_types
from collage.frontend.rewrite.bounds import EXTENTS, INTEGERS, MOVES, Bounds, Types, integer_bounds
from collage.frontend.rewrite.rounded_quotients import rounded_quotients

log = logging.getLogger(__name__)

EXACT = 2**24
"""Integers up to this magnitude are exact in float32."""

_WIDE = (TensorProto.INT64, TensorProto.UINT64)
_SHORT = (TensorProto.INT16, TensorProto.UINT16)
_LARGE_BYTES = 1024

_PARAMETERS: Mapping[str, frozenset[int]] = {
    **dict.fromkeys(("Reshape", "Expand", "Tile", "Squeeze", "Unsqueeze", "TopK"), frozenset([1])),
    **dict.fromkeys(("Split", "CumSum", "Trilu", "OneHot", "Dropout", "CenterCropPad"), frozenset([1])),
    **dict.fromkeys(("Gather", "GatherElements", "GatherND", "ScatterElements"), frozenset([1])),
    "ScatterND": frozenset([1]),
    "Slice": frozenset([1, 2, 3, 4]),
    "Pad": frozenset([1, 3]),
    "Resize": frozenset([3]),
    "ConstantOfShape": frozenset([0]),
    "NonMaxSuppression": frozenset([2]),
    "RoiAlign": frozenset([2]),
    "Loop": frozenset([0]),
    "AffineGrid": frozenset([1]),
    **dict.fromkeys(("Shape", "Size"), frozenset([0])),
}
"""Inputs, by position, that are extents, axes or indices, or whose numbers do not count. Valid ones are small."""

_QUANTISED = frozenset(
    "ConvInteger DequantizeLinear DynamicQuantizeLinear MatMulInteger QLinearConv QLinearMatMul QuantizeLinear".split()
)
"""Operators on 8 bits. The standard says how they saturate, and that they sum in 32 bits."""


def narrowed_nodes(model: onnx.ModelProto) -> Mapping[int, str]:
    """The nodes of the main graph, by index, that an engine of narrow arithmetic may get wrong, with the reasons.

    Types that the model does not declare are inferred, in a copy. Inputs that are indices are assumed to be checked
    before each run (see ``index_limits``).
    """
    typed = _with_types(model)
    limits = {}
    for name, rows in index_limits(typed).items():
        most = rows if isinstance(rows, int) else max(rows)  # there is one for each column, or one for all
        limits[name] = Bounds(-most, most - 1)
    return dict(_problems(typed.graph, Types.of(typed.graph), limits))


def whole_problem(model: onnx.ModelProto) -> str:
    """Why an engine of narrow arithmetic may get the model wrong; "" if it gets it right."""
    if model.functions:
        try:
            model = onnx.inliner.inline_local_functions(model)
        except (EncodeError, RuntimeError, ValueError) as error:  # the model has more than 2 GiB
            log.info("functions are not looked into: %s", error)
    return next(iter(narrowed_nodes(model).values()), "")


def _problems(graph: onnx.GraphProto, types: Types, known: Mapping[str, Bounds]) -> Iterator[tuple[int, str]]:
    found = integer_bounds(graph, types, known)
    indices = _only_indices(graph)
    exact = {
        **rounded_quotients(graph, types),
        **rounding_sums(graph),
        **rewritten(graph, types),
        **square_attention(graph, types),
    }
    read = {each.name for each in graph.output}
    read.update(name for node in graph.node for name in (*node.input, *captures(node)))
    for index, node in enumerate(graph.node):
        reasons = (
            _problem(node, types, found, indices),
            _inside(node, types, found),
            _of_operator(graph, node, types, found, read),
            exact.get(index, ""),
        )
        if reason := next(filter(None, reasons), ""):
            yield index, f"{node.op_type}{f' ({node.name})' if node.name else ''} {reason}"


def _of_operator(
    graph: onnx.GraphProto,
    node: onnx.NodeProto,
    types: Types,
    found: Mapping[str, Bounds | None],
    read: Collection[str],
) -> str:
    """What an engine does to an operator of this kind whatever its types are, or "". ``read`` are the values in use."""
    op, made = node.op_type, node.output[0] if node.output else ""
    if op == "Hardmax" or (op == "TopK" and any(name in read for name in node.output[1:])):
        return "takes another one of equal values"
    if op == "DynamicQuantizeLinear" and scale_shows(graph, node):
        return "makes a scale of 0 for zeros, which is 1 elsewhere"
    if op == "Div" and types.is_integer(made) and not _is_positive(node, found):
        return "divides integers that may be negative, whose quotients it rounds down"
    if op == "QuantizeLinear" and types.elements.get(made) in _SHORT:
        return "makes integers of 16 bits, which do not saturate"
    if op == "Range" and not types.is_integer(made):
        return "counts in floats, where it ends elsewhere"
    if op == "MeanVarianceNormalization":
        return "makes 0 of equal numbers, whose quotient by their deviation is NaN"
    return ""


def _is_positive(node: onnx.NodeProto, found: Mapping[str, Bounds | None]) -> bool:
    """Whether no operand is negative."""
    bounds = [found.get(name) for name in node.input]
    return all(each is not None and each.low >= 0 for each in bounds)


def _inside(node: onnx.NodeProto, types: Types, found: Mapping[str, Bounds | None]) -> str:
    """The first problem in the node's bodies, or ""."""
    for body in bodies(node):
        known = {name: each for name in captures(node) if (each := found.get(name)) is not None}
        if node.op_type == "Loop":
            known[body.input[0].name] = EXTENTS  # the number of the iteration
        for _, reason in _problems(body, types.inside(body), known):
            return f"holds {reason}"
    return ""


def _problem(
    node: onnx.NodeProto, types: Types, found: Mapping[str, Bounds | None], indices: frozenset[str]
) -> str:
    elements = types.elements
    for name in (*node.input, *node.output):
        if elements.get(name) == TensorProto.DOUBLE:
            return "is of float64, which the engine computes in 32 bits"
    skipped = _PARAMETERS.get(node.op_type, frozenset())
    read = [name for p, name in enumerate(node.input) if p not in skipped and _counts(types, name)]
    made = [name for name in node.output if _counts(types, name)]
    values = [name for name in (*read, *made) if name not in indices]
    if not values:
        return ""
    if node.op_type in MOVES or (node.op_type == "Where" and not _counts(types, node.input[0])):
        return _unless_held(node, types, found, [name for name in values if elements[name] in _WIDE])
    if node.op_type == "Cast":
        return _cast_problem(node, types, found)
    if node.op_type in _QUANTISED and all(elements[name] not in _WIDE for name in values):
        return ""
    for name in values:
        bounds = found.get(name)
        low, high = INTEGERS[elements[name]]
        if bounds is None or not bounds.within(max(low, -EXACT), min(high, EXACT)):
            return f"computes with {_type_name(elements[name])}, which the engine does in fewer bits"
    return ""


def _unless_held(
    node: onnx.NodeProto, types: Types, found: Mapping[str, Bounds | None], names: list[str]
) -> str:
    low, high = INTEGERS[TensorProto.INT32]
    for name in names:
        bounds = found.get(name)
        if bounds is None or not bounds.within(low, high):
            return f"gives {_type_name(types.elements[name])} on, which the engine keeps in 32 bits"
    return ""


def _cast_problem(node: onnx.NodeProto, types: Types, found: Mapping[str, Bounds | None]) -> str:
    """The problem of a Cast, or "".

    Casts of integers to float are right, since the operator before a wide integer is a problem itself. Casts to
    integers must fit.
    """
    source, target = types.elements.get(node.input[0], 0), types.elements.get(node.output[0], 0)
    if target not in INTEGERS:
        return ""
    if source not in INTEGERS:
        if target in (TensorProto.INT32, TensorProto.BOOL):
            return ""
        return f"makes {_type_name(target)} of numbers, which the engine does in another way"
    bounds = found.get(node.input[0])
    low, high = INTEGERS[target]
    if target == TensorProto.BOOL:
        low, high = -EXACT, EXACT
    most = INTEGERS[TensorProto.INT32]
    if bounds is None or not bounds.within(max(low, most[0]), min(high, most[1])):
        if source == TensorProto.INT32 and target == TensorProto.INT64:
            return ""
        return f"makes {_type_name(target)} of {_type_name(source)}, which the engine keeps in 32 bits"
    return ""


def _counts(types: Types, name: str) -> bool:
    return types.is_integer(name) and types.elements[name] != TensorProto.BOOL


def _type_name(element: int) -> str:
    return str(TensorProto.DataType.Name(element)).lower()


def _only_indices(graph: onnx.GraphProto) -> frozenset[str]:
    """Values that are used only as indices, extents or axes, perhaps after operators that move data."""
    other = {info.name for info in graph.output}
    indices: set[str] = set()
    for node in reversed(graph.node):
        moved = node.op_type in MOVES or node.op_type == "Cast"
        passed = moved and all(name in indices and name not in other for name in node.output if name)
        for position, name in enumerate(node.input):
            if position in _PARAMETERS.get(node.op_type, ()) or passed:
                indices.add(name)
            else:
                other.add(name)
        other.update(captures(node))
    return frozenset(indices - other)


def _with_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, or a copy without its large weights in which all types are inferred."""
    types = Types.of(model.graph)
    if all(name in types.elements for node in model.graph.node for name in node.output if name):
        return model
    bare = onnx.ModelProto(ir_version=model.ir_version)
    bare.opset_import.extend(model.opset_import)
    bare.functions.extend(model.functions)
    graph = bare.graph
    graph.name = model.graph.name or "graph"
    graph.node.extend(model.graph.node)
    graph.input.extend(model.graph.input)
    graph.output.extend(model.graph.output)
    graph.value_info.extend(model.graph.value_info)
    for tensor in model.graph.initializer:
        if tensor.data_type in INTEGERS or bytes_of(tensor) < _LARGE_BYTES:
            graph.initializer.add().CopyFrom(tensor)
        else:
            graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            )
    return infer_types(bare)
