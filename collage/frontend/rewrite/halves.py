"""Folding of models in float16 that leaves them in float16.

ONNX Runtime makes most operators of float16 float32 for CPUs. For GPUs the model is folded with all its float16 as
float32, and the types come back by the names of values, which folding keeps. Casts between both types are random
numbers meanwhile, which no folding touches.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from collage.errors import ModelError
from collage.frontend.read.scopes import STANDARD
from collage.frontend.read.shapes import inferred
from collage.frontend.read.weights import array_of

__all__ = ["folded_in_float16"]

log = logging.getLogger(__name__)

_HALF, _FLOAT = TensorProto.FLOAT16, TensorProto.FLOAT
_Types = dict[str, int]

_MARK, _MARK_NAME = "RandomNormalLike", "collage cast "
"""The operator that stands for a cast between both types, and what such a node's name begins with."""

_OWN_TYPE: Mapping[str, frozenset[int]] = {
    "BatchNormalization": frozenset({1, 2, 3, 4}),
    "Pow": frozenset({1}),
    "Resize": frozenset({1, 2}),
    "Upsample": frozenset({1}),
}
"""Inputs of operators that need not have the dtype of the others."""
_DTYPES = ("dtype", "output_dtype")
"""Attributes that name the dtype of a result, besides that of a Cast."""


class _OtherError(Exception):
    """Raised for a model that is none of this kind. The message says why."""


def folded_in_float16(model: onnx.ModelProto, fold: Callable[[onnx.ModelProto], onnx.ModelProto]) -> onnx.ModelProto:
    """What ``fold`` makes of the model, with values in float16 where they are float16 in the model.

    What ``fold`` makes of the model itself is the result where there is no float16, and where types cannot be told:
    with graphs inside operators, functions, operators of other domains, and quantisation. Raises what ``fold`` raises.
    """
    if not _may_have_float16(model):
        return fold(model)
    try:
        types = _types_of(model)
        if _HALF not in types.values():
            return fold(model)
        return _checked(_narrowed(fold(_widened(model, types)), types), types)
    except (_OtherError, ModelError) as error:
        log.info("the model is folded as a CPU computes it, in float32 where it is float16: %s", error)
        return fold(model)


def _may_have_float16(model: onnx.ModelProto) -> bool:
    """Whether an input, a weight or an attribute may be float16, without which no value is."""
    graph = model.graph
    attributes = [each for node in graph.node for each in node.attribute]
    return (
        any(each.type.tensor_type.elem_type == _HALF for each in graph.input)
        or any(each.data_type == _HALF for each in graph.initializer)
        or any(each.t.data_type == _HALF or each.i == _HALF for each in attributes)
    )


def _types_of(model: onnx.ModelProto) -> _Types:
    """The element type of each value. Raises _OtherError where one is not known."""
    for node in model.graph.node:
        if node.domain not in STANDARD or "Quantize" in node.op_type or "QLinear" in node.op_type:
            raise _OtherError(f"{node.domain or 'ONNX'}'s {node.op_type}")
        if any(each.HasField("g") or each.graphs for each in node.attribute):
            raise _OtherError(f"{node.op_type} has a graph inside")
        if any(each.name in _DTYPES and each.i == _HALF for each in node.attribute):
            raise _OtherError(f"{node.op_type} makes float16 of something else")
    if model.functions:
        raise _OtherError("it has functions")
    try:
        graph = inferred(model).graph
    except Exception as error:  # onnx raises what its checks raise
        raise _OtherError(f"types cannot be inferred: {error!r:.200}") from error
    infos = (*graph.input, *graph.value_info, *graph.output)
    found = {each.name: int(each.type.tensor_type.elem_type) for each in infos}
    found |= {each.name: int(each.data_type) for each in graph.initializer}
    unknown = [name for node in model.graph.node for name in node.output if name and not found.get(name)]
    if unknown:
        raise _OtherError(f"the type of {unknown[0]} is not known")
    return found


def _widened(model: onnx.ModelProto, types: _Types) -> onnx.ModelProto:
    """A copy with float32 in the place of float16, and marks in the place of casts between both."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    for info in (*graph.input, *graph.output):
        if info.type.tensor_type.elem_type == _HALF:
            info.type.tensor_type.elem_type = _FLOAT
    for tensor in graph.initializer:
        _convert(tensor, _HALF, _FLOAT)
    for number, node in enumerate(graph.node):
        if node.op_type == "Cast" and {types.get(node.input[0]), types[node.output[0]]} == {_HALF, _FLOAT}:
            node.op_type, node.name = _MARK, f"{_MARK_NAME}{number}"
            del node.attribute[:]
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                _convert(attribute.t, _HALF, _FLOAT)
            elif node.op_type == "Cast" and attribute.name == "to" and attribute.i == _HALF:
                attribute.i = _FLOAT
    del graph.value_info[:]
    return made


def _convert(tensor: onnx.TensorProto, before: int, after: int) -> None:
    """Change the type of a tensor of type ``before``, in place."""
    if tensor.data_type == before:
        array = array_of(tensor)
        with np.errstate(over="ignore"):
            array = array.astype(helper.tensor_dtype_to_np_dtype(after))
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _narrowed(folded: onnx.ModelProto, types: _Types) -> onnx.ModelProto:
    """The folded model with the ``types`` of values, in place, and with casts in the place of marks."""
    graph = folded.graph
    for info in (*graph.input, *graph.output):
        if types[info.name] == _HALF:
            info.type.tensor_type.elem_type = _HALF
    tensors = {each.name: each for each in graph.initializer}
    known: _Types = {each.name: types[each.name] for each in graph.input}
    for name, tensor in tensors.items():
        if name in types:
            _convert(tensor, _FLOAT, types[name])
            known[name] = types[name]
    for node in graph.node:
        kind = _type_of(node, known, types)
        if node.op_type == _MARK and node.name.startswith(_MARK_NAME):
            node.op_type = "Cast"
            del node.attribute[:]  # ONNX Runtime writes the defaults
            node.attribute.append(helper.make_attribute("to", kind))
        elif node.op_type == "Cast":
            if kind:
                next(each for each in node.attribute if each.name == "to").i = kind
        elif kind:
            for at in _alike(node):
                node.input[at] = _constant(graph, tensors, known, node.input[at], kind)
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.TENSOR:
                    _convert(attribute.t, _FLOAT, kind)
        known |= {name: types.get(name, kind) for name in node.output}
    del graph.value_info[:]
    return folded


def _constant(graph: onnx.GraphProto, tensors: dict[str, onnx.TensorProto], known: _Types, name: str, kind: int) -> str:
    """The name of a float constant in that type: of itself, or of a copy where it has the other one already."""
    tensor = tensors.get(name)
    if tensor is None or tensor.data_type not in (_HALF, _FLOAT):
        return name
    if name not in known:  # folding has made it
        _convert(tensor, _FLOAT, kind)
        known[name] = kind
    if known[name] == kind:
        return name
    other = f"{name}_as_{TensorProto.DataType.Name(kind).lower()}"
    if other not in tensors:
        copy = graph.initializer.add()
        copy.CopyFrom(tensor)
        _convert(copy, known[name], kind)
        copy.name = other
        tensors[other], known[other] = copy, kind
    return other


def _type_of(node: onnx.NodeProto, known: _Types, types: _Types) -> int:
    """The float type that an operator computes in, or that a cast makes; 0 where it has to do with no such values."""
    names = [name for name in node.output if name in types]
    made = [types[name] for name in names if types[name] in (_HALF, _FLOAT)]
    if made or node.op_type == "Cast":
        return next(iter(made), 0)
    read = (known.get(node.input[at], 0) for at in _alike(node))
    return next((each for each in read if each in (_HALF, _FLOAT)), 0)


def _alike(node: onnx.NodeProto) -> Iterator[int]:
    """The positions of the inputs that have one float type, if they are floats."""
    own = _OWN_TYPE.get(node.op_type, frozenset())
    return (at for at, name in enumerate(node.input) if name and at not in own)


def _checked(model: onnx.ModelProto, types: _Types) -> onnx.ModelProto:
    """The model, if its types fit. Raises _OtherError."""
    try:
        found = inferred(model, strict=True)
    except Exception as error:  # onnx raises what its checks raise
        raise _OtherError(f"types do not fit: {error!r:.200}") from error
    for each in found.graph.output:
        if each.type.tensor_type.elem_type != types[each.name]:
            raise _OtherError(f"the output {each.name} has another type")
    return model
