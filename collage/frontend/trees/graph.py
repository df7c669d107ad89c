"""Writing a small ONNX graph, operator by operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

OPSET, OPSET_TREES, OPSET_OLD_TREES, IR_VERSION = 18, 5, 3, 10
"""Operator sets: that of ONNX, that of ``ai.onnx.ml`` with ``TreeEnsemble``, and with ``TreeEnsembleRegressor``."""


class Graph:
    """Nodes and constants of a graph under construction. ``prefix`` is put before all names that it makes."""

    def __init__(self, prefix: str = "") -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._prefix = prefix

    def name(self, of: str) -> str:
        """A new name."""
        return f"{self._prefix}{of.lower()}_{len(self.nodes) + len(self.constants)}"

    def constant(self, values: NDArray[Any] | Any, dtype: Any = None) -> str:
        """The name of a constant. Text becomes a tensor of strings."""
        array = np.asarray(values, dtype)
        if array.dtype.kind in "UO":
            array = array.astype(object)
        name = self.name("constant")
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def op(self, kind: str, *inputs: str, result: str = "", **attributes: Any) -> str:
        """The name of the output of a new node, which is ``result`` if that is given."""
        result = result or self.name(kind)
        self.nodes.append(helper.make_node(kind, list(inputs), [result], name=self.name(kind), **attributes))
        return result

    def add(self, node: onnx.NodeProto) -> str:
        """The name of the one output of a node that is made already."""
        node.name = self.name(node.op_type)
        self.nodes.append(node)
        return str(node.output[0])

    def model(
        self,
        inputs: list[onnx.ValueInfoProto],
        outputs: list[onnx.ValueInfoProto],
        metadata: Mapping[str, str],
    ) -> onnx.ModelProto:
        """The whole model."""
        graph = helper.make_graph(self.nodes, "trees", inputs, outputs, self.constants)
        kinds = {node.op_type for node in self.nodes}
        trees = OPSET_OLD_TREES if "TreeEnsembleRegressor" in kinds else OPSET_TREES
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", trees)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="collage")
        helper.set_model_props(model, dict(metadata))
        return model
