"""Shapes of operators that onnx has no rule for, from ONNX Runtime: its own rules, or a run of the operator.

Such are ONNX's operators for tables and trees, and all of ONNX Runtime's own. Their shapes follow from those of their
inputs, whatever the numbers are, so the rest of the model can be placed around them. What nobody can infer has the
shape that the file declares, unless that contradicts what is known.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper

from collage.core.library_text import library_text
from collage.frontend.read.scopes import STANDARD, all_nodes, bodies, reads, set_all
from collage.frontend.read.shapes import infer_types
from collage.frontend.rewrite.value_types import Types
from collage.frontend.session import Reference, unoptimised_session

log = logging.getLogger(__name__)

_ELEMENTS = {
    f"tensor({name})": element
    for name, element in (
        ("bool", TensorProto.BOOL),
        ("float", TensorProto.FLOAT),
        ("double", TensorProto.DOUBLE),
        ("float16", TensorProto.FLOAT16),
        *(
            (f"{sign}int{bits}", getattr(TensorProto, f"{sign}int{bits}".upper()))
            for sign in ("", "u")
            for bits in (8, 16, 32, 64)
        ),
    )
}
"""Elements of tensors, as sessions of ONNX Runtime name them."""
_FINDS = frozenset("Compress NonMaxSuppression NonZero StringSplit Unique".split())
"""Operators whose results have as many elements as they find."""
_MOST_BYTES = 1 << 26
"""Inputs of a node that is run have at most so many."""


def settle(model: onnx.ModelProto, declared: Iterable[onnx.ValueInfoProto] = ()) -> onnx.ModelProto:
    """Write the types of such operators, and what follows from them, into the caller's model, in place. Returns it.

    Nodes with texts, those that ONNX Runtime refuses, and those whose shapes depend on numbers get the ``declared``
    types, or stay as they are.
    """
    known = {info.name: info for info in declared}
    while True:
        _settle_by_onnx_runtime(model)
        types = Types.of(model.graph)
        nodes = [node for node in model.graph.node if _may_be_declared(node, types)]
        made = [known[name] for node in nodes for name in node.output if name in known]
        found = {info.name: info for info in made if _fits(info, types)}
        if not found:
            return model
        _write(model.graph, found)
        infer_types(model)


def settle_outputs(model: onnx.ModelProto) -> None:
    """Write the types of outputs behind such operators into the caller's model, in place, if they are known."""
    if not any(map(_is_beyond_onnx, model.graph.node)):
        return
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for info in copy.graph.output:
        info.ClearField("type")
    settle(infer_types(copy))
    types = Types.of(copy.graph)
    for info, found in zip(model.graph.output, copy.graph.output, strict=True):
        if _size(types, info.name) is not None:
            info.CopyFrom(found)


def _settle_by_onnx_runtime(model: onnx.ModelProto) -> None:
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    tried: set[int] = set()
    while True:
        types = Types.of(model.graph)
        waiting = [
            index
            for index, node in enumerate(model.graph.node)
            if index not in tried and _is_beyond_onnx(node) and _has_unknown(node, types)
        ]
        if not waiting:
            return
        ruled = _by_rules(model, types)
        found = {name: info for name, info in ruled.items() if _is_static(info)}
        ready = [index for index in waiting if _has_known_inputs(model.graph.node[index], types)]
        if not found:
            for index in ready:
                node = model.graph.node[index]
                if not any(bodies(node)) and not any(name in ruled for name in node.output):
                    found |= _outputs(model, node, types, constants)
            tried.update(ready)
            if not ready:
                return
        if found:
            _write(model.graph, found)
            infer_types(model)


def _is_beyond_onnx(node: onnx.NodeProto) -> bool:
    """Whether onnx has no rule for the node's shapes, or for those of a node in its bodies."""
    standard = node.domain in STANDARD
    inner = (each for body in bodies(node) for each in all_nodes(body))
    return not (standard and onnx.defs.has(node.op_type)) or any(map(_is_beyond_onnx, inner))


def _may_be_declared(node: onnx.NodeProto, types: Types) -> bool:
    """Whether the shapes of the node's outputs may be those that the file declares, if nobody infers any.

    How many elements are found depends on numbers, and a file declares what an exporter saw once. What is behind such a
    node depends on it.
    """
    if node.domain in STANDARD and node.op_type in _FINDS:
        return False
    shapes = (types.shapes.get(name) for name in reads(node))
    return all(shape is not None and min(shape, default=0) >= 0 for shape in shapes)


def _has_unknown(node: onnx.NodeProto, types: Types) -> bool:
    return any(_size(types, name) is None for name in node.output if name)


def _has_known_inputs(node: onnx.NodeProto, types: Types) -> bool:
    return all(_size(types, name) is not None for name in reads(node))


def _is_static(info: onnx.ValueInfoProto) -> bool:
    return all(dim.HasField("dim_value") for dim in info.type.tensor_type.shape.dim)


def _fits(info: onnx.ValueInfoProto, types: Types) -> bool:
    """Whether what is declared is a whole type of a value whose type is not known, and contradicts nothing."""
    tensor = info.type.tensor_type
    if not tensor.HasField("shape") or not _is_static(info) or tensor.elem_type == TensorProto.STRING:
        return False
    element, known = types.elements.get(info.name), types.shapes.get(info.name)
    if element not in (None, tensor.elem_type) or (known is not None and min(known, default=0) >= 0):
        return False
    extents = [dim.dim_value for dim in tensor.shape.dim]
    return known is None or (
        len(known) == len(extents) and all(k in (-1, e) for k, e in zip(known, extents, strict=True))
    )


def _by_rules(model: onnx.ModelProto, types: Types) -> dict[str, onnx.ValueInfoProto]:
    """The types of values of unknown type that ONNX Runtime infers, by name, if it knows the rank.

    A shape of no extents may be that of a scalar, or not be known at all. So it is left out.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    asked = [name for node in model.graph.node for name in node.output if name and _size(types, name) is None]
    set_all(copy.graph.output, [onnx.ValueInfoProto(name=name) for name in asked])
    try:
        outputs = unoptimised_session(copy).get_outputs()
    except Exception as error:  # ONNX Runtime's exceptions share no base class but Exception
        log.info("ONNX Runtime infers no shapes: %s", library_text(error))
        return {}
    found = {}
    for each in outputs:
        element = _ELEMENTS.get(each.type)
        if element is not None and each.shape:
            extents = [extent if isinstance(extent, int) else None for extent in each.shape]
            found[each.name] = helper.make_tensor_value_info(each.name, element, extents)
    return found


def _size(types: Types, name: str) -> int | None:
    """The number of elements; None if the type or the shape is unknown, and for texts."""
    shape = types.shapes.get(name)
    known = types.elements.get(name, TensorProto.STRING) != TensorProto.STRING
    return None if shape is None or not known or min(shape, default=1) < 0 else int(np.prod(shape))


def _outputs(
    model: onnx.ModelProto, node: onnx.NodeProto, types: Types, constants: Mapping[str, TensorProto]
) -> dict[str, onnx.ValueInfoProto]:
    """The types of the node's outputs, by name, from runs.

    There are none if ONNX Runtime refuses the node, if it gives texts, and if shapes depend on numbers.
    """
    names = list(reads(node))
    given = [name for name in names if name not in constants]
    zeros, others = {}, {}
    rng = np.random.default_rng(0)
    for name in given:
        dtype, shape = helper.tensor_dtype_to_np_dtype(types.elements[name]), types.shapes[name]
        if (_size(types, name) or 0) * dtype.itemsize > _MOST_BYTES:
            return {}
        zeros[name] = np.zeros(shape, dtype)
        others[name] = rng.standard_normal(shape).astype(dtype) if dtype.kind == "f" else zeros[name]
    made = [name for name in node.output if name]
    graph = helper.make_graph(
        [node],
        "node",
        [helper.make_tensor_value_info(name, types.elements[name], types.shapes[name]) for name in given],
        [onnx.ValueInfoProto(name=name) for name in made],
        [constants[name] for name in names if name in constants],
    )
    alone = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    try:
        reference = Reference(alone)
        arrays = reference.run(zeros)
        again = reference.run(others)
    except Exception as error:  # ONNX Runtime's exceptions share no base class but Exception
        log.info("the shape of %s is not known: %s", node.name, library_text(error))
        return {}
    if not all(isinstance(each, np.ndarray) and each.dtype.kind in "fiub" for each in arrays):
        return {}
    if any(one.shape != other.shape for one, other in zip(arrays, again, strict=True)):
        return {}
    return {
        name: helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(each.dtype), each.shape)
        for name, each in zip(made, arrays, strict=True)
    }


def _write(graph: onnx.GraphProto, found: Mapping[str, onnx.ValueInfoProto]) -> None:
    """Declare the types of the values."""
    infos = {info.name: info for info in (*graph.value_info, *graph.output)}
    for name, new in found.items():
        info = infos.get(name) or graph.value_info.add(name=name)
        info.CopyFrom(new)
