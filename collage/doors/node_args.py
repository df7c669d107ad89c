"""Inputs and outputs as ONNX Runtime describes them: a name, a type in its words, and a shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from collage.frontend.messages import parsed
from collage.graph.value_type import SEQUENCE, STRING, TENSOR, ValueType
from collage.kernel.model_artifact import model_artifact, protobuf
from collage.module.fit import original_of
from collage.module.module import CompiledModule
from collage.module.shaped import ShapedModule
from collage.schedule.program import Port
from collage.schedule.suffix import ValuePort

if TYPE_CHECKING:
    import onnx

_NAMES = {"float32": "float", "float64": "double", STRING: "string"}
"""The dtypes that ONNX Runtime calls otherwise than numpy."""


@dataclass(frozen=True)
class NodeArg:
    """An input or output. ``type`` is such as "tensor(float)"; extents that are open are names, or None."""

    name: str
    type: str
    shape: list[int | str | None]


def of_module(module: CompiledModule | ShapedModule) -> tuple[list[NodeArg], list[NodeArg]]:
    """The inputs and outputs of a module. Open extents have the names in the original model, if the module holds it.

    Extents that placements differ in are open, and so are all that the original model leaves open, if it runs calls of
    other shapes.
    """
    modules = module.modules if isinstance(module, ShapedModule) else (module,)
    programs, stored = [each.program for each in modules], modules[0].stored
    inputs, outputs = (
        [_of_ports(ports) for ports in zip(*side, strict=True)]
        for side in ([each.model_inputs for each in programs], [each.model_outputs for each in programs])
    )
    for_one = modules[0].report.for_one
    inputs = [replace(each, shape=[None, *each.shape[1:]]) if each.name in for_one else each for each in inputs]
    any_shapes = isinstance(module, ShapedModule) and module.fallback is not None
    original = module.fallback.model if isinstance(module, ShapedModule) and module.fallback else original_of(stored)
    if original is None:
        return inputs, outputs
    try:
        known = parsed(protobuf(model_artifact(original))).graph.input  # outputs' shapes may be wrong
    except ValueError:  # an engine's own form
        return inputs, outputs
    shapes = {each.name: _shape(each) for each in known}
    return [_named(each, shapes.get(each.name, each.shape), any_shapes) for each in inputs], outputs


def _named(each: NodeArg, shape: list[int | str | None], any_shapes: bool) -> NodeArg:
    """The value with the names of its open extents; all that are open in ``shape`` are, if it is of ``any_shapes``."""
    if len(shape) != len(each.shape):
        return each
    pairs = zip(each.shape, shape, strict=True)
    return replace(each, shape=[name if own is None or any_shapes else own for own, name in pairs])


def _of_ports(ports: Sequence[Port | ValuePort]) -> NodeArg:
    first = ports[0]
    if isinstance(first, ValuePort) and first.type.kind != TENSOR:
        return NodeArg(first.name, _kind_text(first.type), [])
    shapes = [port.type.shape for port in ports if port.type.shape is not None]
    columns = zip(*shapes, strict=True) if len({*map(len, shapes)}) == 1 else ()
    shape: list[int | str | None] = [None if len({*each}) > 1 else each[0] for each in columns]
    return NodeArg(first.name, _tensor_text(first.type.dtype), shape)


def _kind_text(kind: ValueType) -> str:
    """A type in ONNX Runtime's words. What a module's maps map is not known."""
    if kind.kind == TENSOR:
        return _tensor_text(kind.dtype)
    name = "seq" if kind.kind == SEQUENCE else kind.kind
    return name if kind.element is None else f"{name}({_kind_text(kind.element)})"


def _tensor_text(dtype: str) -> str:
    return f"tensor({_NAMES.get(dtype, dtype)})"


def of_info(info: onnx.ValueInfoProto) -> NodeArg:
    """An input or output of a model, with the names of its open extents."""
    return NodeArg(info.name, _type_text(info.type), _shape(info))


def _shape(info: Any) -> list[int | str | None]:
    """The extents of a tensor: numbers, names, and None for open ones without a name; [] for other values."""
    which = info.type.WhichOneof("value") or ""
    dims = getattr(info.type, which).shape.dim if which.endswith("tensor_type") else ()
    return [each.dim_value if each.HasField("dim_value") else each.dim_param or None for each in dims]


def _type_text(kind: onnx.TypeProto) -> str:
    which = kind.WhichOneof("value") or "unknown"
    if which == "sequence_type":
        return f"seq({_type_text(kind.sequence_type.elem_type)})"
    if which == "optional_type":
        return f"optional({_type_text(kind.optional_type.elem_type)})"
    if which == "map_type":
        return f"map({_element(kind.map_type.key_type)},{_type_text(kind.map_type.value_type)})"
    if which.endswith("tensor_type"):
        return f"{which.removesuffix('_type')}({_element(getattr(kind, which).elem_type)})"
    return which


def _element(number: int) -> str:
    import onnx

    if number == onnx.TensorProto.STRING:
        return STRING
    name: str = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(number)).name
    return _NAMES.get(name, name)
