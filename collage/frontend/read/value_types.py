"""ONNX types as ValueType, and the inputs that a user gives, checked against these types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from collage.errors import InputError, ModelError, UsageError, refuse_fixed, unknown_names
from collage.frontend.read.shapes import Shapes, fixed_inputs, model_inputs
from collage.graph.given_array import MismatchError
from collage.graph.value_type import OPTIONAL, SEQUENCE, STRING, TENSOR, ValueType


def value_type(proto: onnx.TypeProto) -> ValueType:
    """The type of an ONNX value. Raises ModelError for an element type that the installed onnx does not know."""
    which = proto.WhichOneof("value") or "unknown"
    if which == "tensor_type":
        tensor = proto.tensor_type
        # Some exporters write -1 for an extent that is not known.
        shape = tuple(d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else None for d in tensor.shape.dim)
        return ValueType(TENSOR, _dtype(tensor.elem_type), shape if tensor.HasField("shape") else None)
    if which == "sequence_type":
        return ValueType(SEQUENCE, element=value_type(proto.sequence_type.elem_type))
    if which == "optional_type":
        return ValueType(OPTIONAL, element=value_type(proto.optional_type.elem_type))
    return ValueType(which.removesuffix("_type"))


def check_example_inputs(model: onnx.ModelProto, given: Mapping[str, Any]) -> dict[str, Any]:
    """The given input values by name, in the form that engines take.

    Raises UsageError for a name that is no input, and InputError for a value of the wrong type or shape.
    """
    infos = {info.name: info for info in model_inputs(model)}
    refuse_fixed(given, fixed_inputs(model))
    unknown = set(given) - set(infos)
    if unknown:
        raise unknown_names("input", unknown, infos)
    found = {}
    for name, value in given.items():
        try:
            found[name] = value_type(infos[name].type).check(value)
        except MismatchError as error:
            raise InputError(f"input {name} {error}.") from error
    return found


def check_samples(model: onnx.ModelProto, given: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """The given samples, each as in ``check_example_inputs``.

    Raises UsageError and InputError, which name the sample by its number, also where a sample has other inputs or
    shapes than the first one.
    """
    found: list[dict[str, Any]] = []
    for number, sample in enumerate(given, start=1):
        try:
            checked = check_example_inputs(model, sample)
        except UsageError as error:
            raise type(error)(f"sample {number}: {error}") from error
        first = found[0] if found else checked
        if checked.keys() != first.keys():
            names = ", ".join(sorted(checked.keys() ^ first.keys()))
            raise InputError(f"sample {number} and sample 1 differ in whether they have {names}.")
        shapes, firsts = shapes_of(checked), shapes_of(first)
        for name, shape in shapes.items():
            if shape != firsts[name]:
                raise InputError(
                    f"sample {number}: input {name} has the shape {shape}, and that of sample 1 has {firsts[name]}; "
                    "a compile is for one set of shapes."
                )
        found.append(checked)
    return tuple(found)


def shapes_of(example_inputs: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shapes (elements per axis) of the example inputs that are arrays, by name."""
    return {name: value.shape for name, value in example_inputs.items() if isinstance(value, np.ndarray)}


def with_shapes_of(example_inputs: Mapping[str, Any], shapes: Shapes) -> dict[str, tuple[int, ...]]:
    """``shapes`` (elements per axis), and those of the example inputs. Raises UsageError if the two differ."""
    found = shapes_of(example_inputs)
    for name, shape in shapes.items():
        own = found.setdefault(name, tuple(shape))
        if own != tuple(shape):
            texts = ["x".join(map(str, each)) or "()" for each in (shape, own)]
            raise UsageError(
                f"input {name} has the shape {texts[0]} by the given shapes, and {texts[1]} by the value that is given "
                "for it. Leave out its shape, or give a value of that shape."
            )
    return found


def _dtype(element: int) -> str:
    if element == onnx.TensorProto.STRING:
        return STRING
    try:
        name: str = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(element)).name
    except (KeyError, ValueError, TypeError) as error:
        raise ModelError(f"the model has tensors of type {element}, which the installed onnx does not know.") from error
    return name
