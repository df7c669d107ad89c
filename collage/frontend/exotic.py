"""Types that ONNX Runtime does not exchange with numpy (bfloat16, float8, types of few bits), through plain ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

_SUFFIX = "__plain"


def _plain_elements() -> dict[int, int]:
    """For each exotic element type the plain one that holds its values exactly."""
    found: dict[int, int] = {}
    for name, element in onnx.TensorProto.DataType.items():
        if name == "BFLOAT16" or name.startswith(("FLOAT8", "FLOAT4")):
            found[element] = onnx.TensorProto.FLOAT
        elif name in ("INT4", "INT2", "UINT4", "UINT2"):
            found[element] = onnx.TensorProto.INT8 if name.startswith("I") else onnx.TensorProto.UINT8
    return found


_PLAIN = _plain_elements()


@dataclass(frozen=True)
class PlainInterface:
    """``model`` takes and gives plain types in place of exotic ones; ``run`` makes up for that.

    ``inputs`` are numpy dtypes of what it takes instead, by original name; ``outputs`` those of what it should have
    given, by position.
    """

    model: onnx.ModelProto
    inputs: Mapping[str, Any]
    outputs: Mapping[int, Any]

    def run(self, run: Callable[[dict[str, Any]], Sequence[Any]], feeds: Mapping[str, Any]) -> list[Any]:
        """Outputs, in order, for inputs by their original names; ``run`` takes and gives those of the model."""
        given = {
            name + _SUFFIX if name in self.inputs else name: np.asarray(value, self.inputs[name])
            if name in self.inputs
            else value
            for name, value in feeds.items()
        }
        results = run(given)
        return [
            value.astype(self.outputs[position]) if position in self.outputs else value
            for position, value in enumerate(results)
        ]


def has_exotic(model: onnx.ModelProto) -> bool:
    """Whether some input or output is of such a type."""
    infos = [*model.graph.input, *model.graph.output]
    return any(info.type.tensor_type.elem_type in _PLAIN for info in infos)


def plain_interface(model: onnx.ModelProto) -> PlainInterface:
    """The model with casts at its ends, in place; it is changed only where there is something exotic."""
    return PlainInterface(model, _cast_inputs(model), _cast_outputs(model))


def _cast_inputs(part: onnx.ModelProto) -> dict[str, Any]:
    """Let the model take plain types; gives their numpy dtypes by the inputs' names."""
    found: dict[str, Any] = {}
    initializers = {tensor.name for tensor in part.graph.initializer}
    for info in part.graph.input:
        element = info.type.tensor_type.elem_type
        if element in _PLAIN and info.name not in initializers:
            found[info.name] = onnx.helper.tensor_dtype_to_np_dtype(_PLAIN[element])
            cast = onnx.helper.make_node("Cast", [info.name + _SUFFIX], [info.name], to=element)
            part.graph.node.insert(0, cast)
            info.name += _SUFFIX
            info.type.tensor_type.elem_type = _PLAIN[element]
    return found


def _cast_outputs(part: onnx.ModelProto) -> dict[int, Any]:
    """Let the model give plain types; gives the numpy dtypes it should give, by position."""
    found: dict[int, Any] = {}
    for position, info in enumerate(part.graph.output):
        element = info.type.tensor_type.elem_type
        if element in _PLAIN:
            found[position] = onnx.helper.tensor_dtype_to_np_dtype(element)
            cast = onnx.helper.make_node("Cast", [info.name], [info.name + _SUFFIX], to=_PLAIN[element])
            part.graph.node.append(cast)
            info.name += _SUFFIX
            info.type.tensor_type.elem_type = _PLAIN[element]
    return found
