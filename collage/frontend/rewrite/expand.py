"""Operators that the standard defines by other operators, such as ``Attention``, are replaced by these.

TVM has no converter for them, and each engine knows only some forms.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import onnx
import onnx.inliner
from google.protobuf.message import EncodeError

from collage.frontend.read.load import settle_opset
from collage.frontend.read.scopes import STANDARD, set_all
from collage.frontend.read.shapes import infer_types

log = logging.getLogger(__name__)

EXPANDED = frozenset("Attention CausalConvWithState Celu LinearAttention RotaryEmbedding SwiGLU Swish".split())
"""The operators with a definition in the standard that TVM's importer lacks."""

_DOMAIN = "collage.expanded"


def expand(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of the model without the operators of EXPANDED in its main graph; the model itself if it has none."""
    default = [opset.version for opset in model.opset_import if opset.domain in STANDARD]
    wanted = [i for i, node in enumerate(model.graph.node) if node.domain == "" and node.op_type in EXPANDED]
    if not wanted or len(default) != 1:
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    types = _types(copy)
    for index in wanted:
        node = copy.graph.node[index]
        try:
            body = _definition(node, default[0], types)
        except (RuntimeError, ValueError, TypeError, onnx.defs.SchemaError) as error:
            # The definition does not cover these types or attributes, or the operator set does not have it.
            log.info("%s (%s) stays as it is: %s", node.name, node.op_type, error)
            continue
        if body is not None:
            body.domain, body.name = _DOMAIN, f"{node.op_type}{index}"
            node.domain, node.op_type = body.domain, body.name
            copy.functions.append(body)
    if len(copy.functions) == len(model.functions):
        return model
    copy.opset_import.append(onnx.helper.make_opsetid(_DOMAIN, 1))
    try:
        copy = onnx.inliner.inline_local_functions(copy)
    except (EncodeError, RuntimeError, ValueError) as error:  # the model has more than 2 GiB
        log.info("operators are not expanded: %s", error)
        return model
    set_all(copy.opset_import, [opset for opset in copy.opset_import if opset.domain != _DOMAIN])
    return settle_opset(copy, "the model")


def _definition(node: onnx.NodeProto, version: int, types: Mapping[str, onnx.TypeProto]) -> onnx.FunctionProto | None:
    """The operator as a function of other operators of the set ``version``; None if that does not define it.

    Default attributes are written into ``node``.
    """
    schema: Any = onnx.defs.get_schema(node.op_type, version, "")  # onnx's stubs lack its functions
    given = {attribute.name for attribute in node.attribute}
    node.attribute.extend(
        a.default_value for a in schema.attributes.values() if a.default_value.name and a.name not in given
    )
    if schema.has_function:
        made_for = _newest(schema.function_opset_versions, version)
        data = schema.get_function_with_opset_version(made_for)
    else:
        made_for = _newest(schema.context_dependent_function_opset_versions, version)
        known = [types.get(name, onnx.TypeProto()).SerializeToString() for name in node.input]
        data = schema.get_context_dependent_function_with_opset_version(made_for, node.SerializeToString(), known)
    if not data:
        return None
    body: onnx.FunctionProto = onnx.FunctionProto.FromString(data)
    if not all(_signature(each, made_for) == _signature(each, version) for each in body.node):
        return None  # an operator of the definition has changed since
    for opset in body.opset_import:
        opset.version = version
    return body


def _newest(versions: Iterable[int], most: int) -> int:
    return max((each for each in versions if each <= most), default=most)


def _signature(node: onnx.NodeProto, version: int) -> object:
    """The names of an operator's inputs, and its attributes with their defaults. They change with its meaning."""
    schema = onnx.defs.get_schema(node.op_type, version, node.domain)
    attributes = {
        name: (a.type, a.required, a.default_value.SerializeToString()) for name, a in schema.attributes.items()
    }
    return [each.name for each in schema.inputs], attributes


def _types(model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    graph = infer_types(model).graph
    types = {info.name: info.type for info in (*graph.input, *graph.value_info, *graph.output)}
    for tensor in graph.initializer:
        types[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
    return types
