"""Tensors of the protocol: their types, and how their elements are written in JSON and in bytes."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from collage.errors import InputError, UsageError
from collage.graph.dataflow import Array, np_dtype
from collage.graph.given_array import MismatchError, given_texts
from collage.graph.value_type import STRING, TENSOR
from collage.module.module import CompiledModule
from collage.module.shaped import ShapedModule
from collage.schedule.program import Port
from collage.schedule.suffix import ValuePort

_DATATYPES: Mapping[str, str] = {
    "bool": "BOOL",
    **{f"{kind}int{bits}": f"{kind.upper()}INT{bits}" for kind in ("", "u") for bits in (8, 16, 32, 64)},
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
    "bfloat16": "BF16",
    STRING: "BYTES",
}
_MOST_AXES = 32
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True)
class Tensor:
    """An input or output. An extent of ``shape`` that is open is -1; ``dtype`` is numpy's name, or "string"."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def datatype(self) -> str:
        """The name of the dtype in the protocol."""
        return _DATATYPES[self.dtype]

    def metadata(self) -> dict[str, Any]:
        """The tensor as the metadata of a model have it."""
        return {"name": self.name, "datatype": self.datatype, "shape": [*self.shape]}


@dataclass(frozen=True)
class Signature:
    """The inputs and outputs of a module. Outputs that are ``left_out`` are no tensors that the protocol has."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    left_out: tuple[str, ...] = ()


def signature_of(module: CompiledModule | ShapedModule, *, any_batch: bool) -> Signature:
    """The signature of a module; with ``any_batch`` the first axis of all tensors is open.

    Raises UsageError for an input that the protocol does not have, or if it has none of the outputs.
    """
    programs = [each.program for each in module.modules] if isinstance(module, ShapedModule) else [module.program]
    inputs = [*zip(*(each.model_inputs for each in programs), strict=True)]
    outputs = [*zip(*(each.model_outputs for each in programs), strict=True)]
    if wrong := [ports[0].name for ports in inputs if not _is_known(ports[0])]:
        raise UsageError(f"the module cannot be served by KServe's protocol, which has no type for {', '.join(wrong)}.")
    known = [ports for ports in outputs if _is_known(ports[0])]
    if not known:
        raise UsageError("the module cannot be served by KServe's protocol, which has no type for its outputs.")
    return Signature(
        tuple(_tensor(ports, any_batch) for ports in inputs),
        tuple(_tensor(ports, any_batch) for ports in known),
        tuple(ports[0].name for ports in outputs if not _is_known(ports[0])),
    )


def _is_known(port: Port | ValuePort) -> bool:
    return (not isinstance(port, ValuePort) or port.type.kind == TENSOR) and port.type.dtype in _DATATYPES


def _tensor(ports: Sequence[Port | ValuePort], any_batch: bool) -> Tensor:
    """The tensor that the ports of several sets of shapes are; extents that they differ in are open."""
    shapes = {port.type.shape for port in ports}
    ranks = {None if shape is None else len(shape) for shape in shapes}
    if len(ranks) > 1 or None in ranks:
        return Tensor(ports[0].name, ports[0].type.dtype, (-1,))
    columns = zip(*(shape or () for shape in shapes), strict=True)
    shape = [-1 if len({*extents}) > 1 or extents[0] is None else extents[0] for extents in columns]
    if any_batch and shape:
        shape[0] = -1
    return Tensor(ports[0].name, ports[0].type.dtype, tuple(shape))


def from_bytes(tensor: Tensor, shape: Sequence[int], data: memoryview) -> Array:
    """The tensor of that shape whose elements are these bytes, row by row. Raises InputError."""
    if tensor.dtype == STRING:
        return _shaped(tensor, shape, _texts(tensor, [*_elements(tensor, data)]))
    kind = np.dtype(np.uint8) if tensor.dtype == "bool" else np_dtype(tensor.dtype)
    if math.prod(shape) * kind.itemsize != len(data):
        raise InputError(
            f"input {tensor.name} has {len(data)} bytes, and its shape {[*shape]} of {tensor.datatype} takes "
            f"{math.prod(shape) * kind.itemsize}."
        )
    found: Array = np.frombuffer(data, kind).reshape(_checked(tensor, shape)).copy()  # they may begin anywhere
    return found.astype(bool) if tensor.dtype == "bool" else found


def from_json(tensor: Tensor, shape: Sequence[int], data: Any) -> Array:
    """The tensor of that shape whose elements are in a list, which may be nested; null is NaN. Raises InputError."""
    if not isinstance(data, list):
        raise InputError(f"input {tensor.name} has data that is no list.")
    flat = _flat(data)
    if tensor.dtype == STRING:
        return _shaped(tensor, shape, _texts(tensor, flat))
    is_real = tensor.datatype.startswith(("FP", "BF"))
    if is_real:
        flat = [math.nan if each is None else each for each in flat]
    kinds = {float, int} if is_real else {bool} if tensor.dtype == "bool" else {int}
    if not {*map(type, flat)} <= kinds:
        wrong = next(each for each in flat if type(each) not in kinds)
        raise InputError(f"input {tensor.name} has the element {json.dumps(wrong)}, which is no {tensor.datatype}.")
    try:
        with np.errstate(over="raise"):
            found = np.array(flat, np.float64 if is_real else np_dtype(tensor.dtype)).astype(np_dtype(tensor.dtype))
    except (ArithmeticError, ValueError) as error:
        raise InputError(f"input {tensor.name} has numbers that {tensor.datatype} does not hold.") from error
    return _shaped(tensor, shape, found)


def to_bytes(array: Array) -> bytes:
    """The elements of an output, row by row."""
    if array.dtype.kind not in "OUS":
        return array.tobytes()
    found = bytearray()
    for each in array.flat:
        text = each if isinstance(each, bytes) else str(each).encode()
        found += _LENGTH.pack(len(text)) + text
    return bytes(found)


def to_json(name: str, array: Array) -> list[Any]:
    """The elements of an output, row by row; NaN is null. Raises InputError for infinities, which JSON lacks."""
    flat = array.reshape(-1)
    if array.dtype.kind in "OUS":
        return [each.decode(errors="replace") if isinstance(each, bytes) else str(each) for each in flat]
    values = flat if array.dtype.kind in "biuf" else flat.astype(np.float32)
    found: list[Any] = values.tolist()
    if np.isfinite(values).all():
        return found
    if np.isinf(values).any():
        raise InputError(
            f"output {name} has infinities, which JSON does not have: ask for it with the parameter binary_data."
        )
    return [None if math.isnan(each) else each for each in found]


def _checked(tensor: Tensor, shape: Sequence[int]) -> Sequence[int]:
    if len(shape) > _MOST_AXES:
        raise InputError(f"input {tensor.name} has {len(shape)} axes.")
    return shape


def _shaped(tensor: Tensor, shape: Sequence[int], flat: Array) -> Array:
    if math.prod(shape) != flat.size:
        raise InputError(f"input {tensor.name} has {flat.size} elements, and its shape {[*shape]} {math.prod(shape)}.")
    return flat.reshape(_checked(tensor, shape))


def _flat(data: list[Any]) -> list[Any]:
    """The elements of nested lists, in order."""
    if not any(isinstance(each, list) for each in data):
        return data
    found: list[Any] = []
    stack = [iter(data)]
    while stack:
        for each in stack[-1]:
            if isinstance(each, list):
                stack.append(iter(each))
                break
            found.append(each)
        else:
            stack.pop()
    return found


def _texts(tensor: Tensor, elements: Sequence[Any]) -> Array:
    texts = np.empty(len(elements), object)
    texts[:] = elements
    try:
        return given_texts(texts)
    except MismatchError as error:
        raise InputError(f"input {tensor.name} {error}.") from error


def _elements(tensor: Tensor, data: memoryview) -> list[bytes]:
    """The elements of a tensor of texts, each behind its length. Raises InputError."""
    found, at = [], 0
    while at < len(data):
        begin = at + _LENGTH.size
        at = begin + _LENGTH.unpack_from(data, at)[0] if begin <= len(data) else len(data) + 1
        if at > len(data):
            raise InputError(f"input {tensor.name} ends in the middle of an element of BYTES.")
        found.append(bytes(data[begin:at]))
    return found
