"""Making a graph of PyTorch (``torch.fx``) of an ONNX model.

The converters that there are for this read shapes from tensors while the model runs, or have had no release for years
(docs/gpu.md). A CUDA graph and PyTorch's compiler need a graph without that: here shapes are numbers, and each operator
is a few lines.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from collage.backends.base import UnsupportedError
from collage.backends.torch_graph.elementwise import elementwise
from collage.backends.torch_graph.movement import movement
from collage.backends.torch_graph.operator import Operator, Table
from collage.backends.torch_graph.products import products
from collage.backends.torch_graph.reductions import before_13, reductions
from collage.backends.torch_graph.tensors import tensor_of, torch_dtype
from collage.errors import ModelError
from collage.frontend.read.shapes import model_inputs
from collage.frontend.rewrite.simplify import simplify
from collage.graph.dataflow import Array

__all__ = ["graph_module", "simplified"]


def simplified(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with constants folded, as ``graph_module`` takes it. Raises UnsupportedError."""
    try:
        return simplify(model, halves=True)
    except ModelError as error:
        raise UnsupportedError(str(error)) from error


def graph_module(model: onnx.ModelProto, *, writing: bool) -> Any:
    """The model as a ``torch.fx.GraphModule`` on the CPU, which takes the inputs in order and gives a tuple.

    One that is ``writing`` takes tensors for the outputs after the inputs, fills them, and gives nothing. Raises
    UnsupportedError, which names the operator.
    """
    return _Conversion(model).module(writing=writing)


def _operators(opset: int) -> Table:
    table = {**elementwise(), **products(), **reductions(), **movement()}
    return {**table, **before_13()} if opset < 13 else table


class _Conversion:
    """The graph while it is made: what is known of each value, by its ONNX name."""

    def __init__(self, model: onnx.ModelProto) -> None:
        import torch.fx

        opset = next((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), 1)
        self._model = model
        self._table = _operators(opset)
        self._graph: Any = torch.fx.Graph()
        self._nodes: dict[str, Any] = {}
        self._constants: dict[str, Array] = {
            each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer
        }
        self._weights: dict[str, Any] = {}
        self._read = {each.name for each in model.graph.output}.union(*(n.input for n in model.graph.node))

    def module(self, *, writing: bool) -> Any:
        """The graph as a module, once all nodes are in it."""
        import torch.fx

        inputs, outputs = model_inputs(self._model), self._model.graph.output
        for number, info in enumerate(inputs):
            self._nodes[info.name] = self._graph.placeholder(f"input{number}")
        targets = [self._graph.placeholder(f"output{i}") for i in range(len(outputs))] if writing else []
        for node in self._model.graph.node:
            self._add(node)
        made = [self._node(info.name) for info in outputs]
        for target, value in zip(targets, made, strict=False):
            self._graph.call_method("copy_", (target, value))
        self._graph.output(() if writing else tuple(made))
        module: Any = torch.fx.GraphModule(self._weights, self._graph)
        return module.eval().requires_grad_(False)

    def _add(self, node: onnx.NodeProto) -> None:
        if node.domain not in ("", "ai.onnx"):
            raise UnsupportedError(f"{node.domain}.{node.op_type} has no form in PyTorch here")
        attributes = {each.name: _attribute(each) for each in node.attribute}
        if node.op_type == "Constant":
            self._constants[node.output[0]] = _constant(attributes, node)
            return
        if node.op_type == "Cast":
            wanted = onnx.helper.tensor_dtype_to_np_dtype(attributes["to"])
            if node.input[0] in self._constants:  # in float16 ONNX Runtime leaves some of these
                self._constants[node.output[0]] = self._constants[node.input[0]].astype(wanted)
                return
            dtype = torch_dtype(wanted)
            self._nodes[node.output[0]] = self._graph.call_method("to", (self._node(node.input[0]), dtype))
            return
        operator = self._table.get(node.op_type)
        if operator is None:
            raise UnsupportedError(f"{node.op_type} has no form in PyTorch here")
        if node.op_type == "TopK":
            attributes["places"] = node.output[1] in self._read
        taken = tuple(self._taken(node, operator, at) for at in range(len(node.input)))
        _check_signature(operator, node, taken, attributes)
        made = self._graph.call_function(operator.run, taken, attributes)
        self._name_outputs(node, made)

    def _name_outputs(self, node: onnx.NodeProto, made: Any) -> None:
        import operator

        named = [name for name in node.output if name]
        if len(node.output) == 1 and node.op_type != "Split":
            self._nodes[node.output[0]] = made
        elif node.op_type in ("Split", "TopK"):
            for at, name in enumerate(node.output):
                self._nodes[name] = self._graph.call_function(operator.getitem, (made, at))
        elif len(named) == 1 and node.output[0]:
            self._nodes[named[0]] = made
        else:
            raise UnsupportedError(f"{node.op_type} with {len(named)} outputs has no form in PyTorch here")

    def _taken(self, node: onnx.NodeProto, operator: Operator, at: int) -> Any:
        name = node.input[at]
        if not name:
            return None
        if at not in operator.numbers:
            return self._node(name)
        if name not in self._constants:
            raise UnsupportedError(f"{node.op_type} with an input {at} that is no constant has no form in PyTorch here")
        return self._constants[name].reshape(-1).tolist()

    def _node(self, name: str) -> Any:
        """The value's node. A constant becomes a weight of the module when it is first used as a tensor."""
        if name not in self._nodes:
            if name not in self._constants:
                raise UnsupportedError(f"the value {name} is made by nothing")
            attribute = f"weight{len(self._weights)}"
            self._weights[attribute] = tensor_of(np.array(self._constants[name]))
            self._nodes[name] = self._graph.get_attr(attribute)
        return self._nodes[name]


def _attribute(attribute: onnx.AttributeProto) -> Any:
    found = onnx.helper.get_attribute_value(attribute)
    if isinstance(found, bytes):
        return found.decode()
    if isinstance(found, (onnx.GraphProto, onnx.SparseTensorProto)):
        raise UnsupportedError("operators with graphs inside have no form in PyTorch here")
    return list(found) if not isinstance(found, (int, float, str, onnx.TensorProto)) else found


def _constant(attributes: Mapping[str, Any], node: onnx.NodeProto) -> Array:
    for name in ("value", "value_float", "value_int", "value_floats", "value_ints"):
        if name in attributes:
            found = attributes[name]
            if isinstance(found, onnx.TensorProto):
                return onnx.numpy_helper.to_array(found)
            return np.array(found, np.float32 if "float" in name else np.int64)
    raise UnsupportedError(f"the constant {node.output[0]} has no form in PyTorch here")


def _check_signature(operator: Operator, node: onnx.NodeProto, taken: Any, attributes: Mapping[str, Any]) -> None:
    """Raises UnsupportedError for inputs and attributes that the operator's function does not know."""
    try:
        signature = inspect.signature(operator.run)
    except ValueError:  # PyTorch's own functions do not tell theirs, and take tensors only
        if not attributes:
            return
        raise UnsupportedError(f"{node.op_type} with the attribute {next(iter(attributes))}") from None
    try:
        signature.bind(*taken, **attributes)
    except TypeError as error:
        raise UnsupportedError(f"{node.op_type} has no form in PyTorch here: {error}") from error
