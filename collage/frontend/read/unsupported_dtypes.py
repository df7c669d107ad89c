"""Dtypes that ONNX Runtime does not exchange with numpy: bfloat16, 8-bit and 4-bit floats, integers of 4 and 2 bits.

A model whose inputs or outputs are of such a type gets casts at its ends, so that plain types go in and come out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

_SUFFIX = "__plain"


def _plain_elements() -> dict[int, int]:
    """For each unsupported element type a plain one that holds its values exactly."""
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
    """``model`` has plain types in place of unsupported ones at its ends, and ``run`` converts between the two.

    ``inputs`` are the numpy dtypes of the inputs that were changed, by their original names. ``outputs`` are the numpy
    dtypes that changed outputs had, by position.
    """

    model: onnx.ModelProto
    inputs: Mapping[str, Any]
    outputs: Mapping[int, Any]

    def run(self, run: Callable[[dict[str, Any]], Sequence[Any]], feeds: Mapping[str, Any]) -> list[Any]:
        """Outputs in order, of their original dtypes, for inputs by their original names.

        ``run`` runs ``model``: it takes inputs by name and returns the outputs in order.
        """
        plain = {
            name + _SUFFIX if name in self.inputs else name: np.asarray(value, self.inputs[name])
            if name in self.inputs
            else value
            for name, value in feeds.items()
        }
        results = run(plain)
        return [
            value.astype(self.outputs[position]) if position in self.outputs else value
            for position, value in enumerate(results)
        ]


def has_unsupported(model: onnx.ModelProto) -> bool:
    """Whether some input or output of the model is of such a type."""
    infos = [*model.graph.input, *model.graph.output]
    return any(info.type.tensor_type.elem_type in _PLAIN for info in infos)


def plain_interface(model: onnx.ModelProto) -> PlainInterface:
    """Write casts into the model, at each end that is of an unsupported type.

    The caller's model is changed in place: give a copy where it is needed as it was.
    """
    return PlainInterface(model, _cast_inputs(model), _cast_outputs(model))


def _cast_inputs(part: onnx.ModelProto) -> dict[str, Any]:
    """Give the model plain inputs, in place. Returns their numpy dtypes by the inputs' original names."""
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
    """Give the model plain outputs, in place. Returns the numpy dtypes that they had, by position."""
    found: dict[int, Any] = {}
    for position, info in enumerate(part.graph.output):
        element = info.type.tensor_type.elem_type
        if element in _PLAIN:
            found[position] = onnx.helper.tensor_dtype_to_np_dtype(element)
            plain = f"{info.name}{_SUFFIX}_{position}"  # the value may be an input, or another output
            cast = onnx.helper.make_node("Cast", [info.name], [plain], to=_PLAIN[element])
            part.graph.node.append(cast)
            info.name = plain
            info.type.tensor_type.elem_type = _PLAIN[element]
    return found
