"""Requests for inference and their answers, in JSON with the extension for binary tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from collage.errors import InputError
from collage.graph.dataflow import Array
from collage.serve.kserve.tensors import Signature, Tensor, from_bytes, from_json, to_bytes, to_json

VERSION = "1"
"""The only version of a model."""

_MAX_ID = 256


@dataclass(frozen=True)
class InferRequest:
    """The arrays by input, and for each wanted output whether it is wanted in bytes."""

    inputs: Mapping[str, Array]
    outputs: Mapping[str, bool]
    id: str | None
    parameters: Mapping[str, Any]


def parse_request(body: bytes, header_length: int | None, signature: Signature) -> InferRequest:
    """The request in a body, whose first ``header_length`` bytes are JSON, or all. Raises InputError."""
    length = len(body) if header_length is None else header_length
    if not 0 <= length <= len(body):
        raise InputError(f"the header Inference-Header-Content-Length is {length}, and the body has {len(body)} bytes.")
    try:
        data = json.loads(body[:length])
    except (ValueError, RecursionError) as error:
        raise InputError(f"the body is no JSON: {error}") from error
    if not isinstance(data, dict):
        raise InputError("the body is no object of JSON.")
    id = data.get("id")
    if id is not None and not (isinstance(id, str) and len(id) <= _MAX_ID):
        raise InputError(f"id is no text of up to {_MAX_ID} characters.")
    parameters = _parameters(data, "the request")
    inputs = _inputs(_objects(data, "inputs"), memoryview(body)[length:], signature)
    in_bytes = _flag(parameters, "binary_data_output")
    outputs = _outputs(_objects(data, "outputs"), in_bytes, signature)
    rest = {name: value for name, value in parameters.items() if name != "binary_data_output"}
    return InferRequest(inputs, outputs, id, rest)


def answer(name: str, request: InferRequest, outputs: Mapping[str, Any], signature: Signature) -> tuple[bytes, int]:
    """The body of an answer, and how many bytes at its beginning are JSON. Raises InputError."""
    found: dict[str, Any] = {"model_name": name, "model_version": VERSION}
    if request.id is not None:
        found["id"] = request.id
    if request.parameters:
        found["parameters"] = request.parameters
    tensors = {each.name: each for each in signature.outputs}
    described, behind = [], []
    for wanted, in_bytes in request.outputs.items():
        array = np.asarray(outputs[wanted])
        each: dict[str, Any] = {**tensors[wanted].metadata(), "shape": [*array.shape]}
        if in_bytes:
            behind.append(to_bytes(array))
            each["parameters"] = {"binary_data_size": len(behind[-1])}
        else:
            each["data"] = to_json(wanted, array)
        described.append(each)
    head = json.dumps({**found, "outputs": described}, ensure_ascii=False, separators=(",", ":")).encode()
    return b"".join((head, *behind)), len(head)


def _inputs(given: Sequence[Mapping[str, Any]], binary: memoryview, signature: Signature) -> dict[str, Array]:
    tensors = {each.name: each for each in signature.inputs}
    found: dict[str, Array] = {}
    for each in given:
        name = each.get("name")
        tensor = tensors.get(name) if isinstance(name, str) else None
        if tensor is None:
            raise InputError(f"unknown input: {name}. The model takes: {', '.join(tensors)}.")
        if tensor.name in found:
            raise InputError(f"input {name} is given twice.")
        if (datatype := each.get("datatype")) != tensor.datatype:
            raise InputError(f"input {name} has the datatype {datatype}, and the model takes {tensor.datatype}.")
        parameters = _parameters(each, f"input {name}")
        _refuse(parameters, f"input {name}", "shared_memory_region")
        shape = _shape(each.get("shape"), tensor)
        size = parameters.get("binary_data_size")
        if size is None:
            found[tensor.name] = from_json(tensor, shape, each.get("data"))
            continue
        if type(size) is not int or not 0 <= size <= len(binary):
            raise InputError(f"input {name} has a binary_data_size of {size}, and there are {len(binary)} bytes.")
        if "data" in each:
            raise InputError(f"input {name} has both data and binary_data_size.")
        found[tensor.name] = from_bytes(tensor, shape, binary[:size])
        binary = binary[size:]
    if missing := [name for name in tensors if name not in found]:
        raise InputError(f"missing input: {', '.join(missing)}.")
    if len(binary):
        raise InputError(f"the body has {len(binary)} bytes that belong to no input.")
    return found


def _outputs(given: Sequence[Mapping[str, Any]], in_bytes: bool, signature: Signature) -> dict[str, bool]:
    names = [each.name for each in signature.outputs]
    if not given:
        return dict.fromkeys(names, in_bytes)
    found = {}
    for each in given:
        name = each.get("name")
        if name not in names:
            if name in signature.left_out:
                raise InputError(f"output {name} is no tensor. There are: {', '.join(names)}.")
            raise InputError(f"unknown output: {name}. The model has: {', '.join(names)}.")
        parameters = _parameters(each, f"output {name}")
        _refuse(parameters, f"output {name}", "shared_memory_region", "classification")
        found[str(name)] = _flag(parameters, "binary_data", in_bytes)
    return found


def _objects(data: Mapping[str, Any], field: str) -> list[dict[str, Any]]:
    found = data.get(field, [])
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise InputError(f"{field} is no list of objects.")
    return found


def _parameters(data: Mapping[str, Any], what: str) -> dict[str, Any]:
    found = data.get("parameters", {})
    if not isinstance(found, dict):
        raise InputError(f"the parameters of {what} are no object.")
    return found


def _flag(parameters: Mapping[str, Any], name: str, default: bool = False) -> bool:
    found = parameters.get(name, default)
    if not isinstance(found, bool):
        raise InputError(f"the parameter {name} is true or false, and not {found!r}.")
    return found


def _refuse(parameters: Mapping[str, Any], what: str, *names: str) -> None:
    for name in names:
        if parameters.get(name):
            raise InputError(f"{what} has the parameter {name}, which this server does not have.")


def _shape(data: Any, tensor: Tensor) -> Sequence[int]:
    if not isinstance(data, list) or not all(type(each) is int and 0 <= each < 1 << 63 for each in data):
        raise InputError(f"input {tensor.name} has the shape {data}, which is no list of whole numbers.")
    return data
