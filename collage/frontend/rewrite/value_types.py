"""Element types and shapes of the values in an ONNX graph, and the operators that only move values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx
from onnx import TensorProto

INTEGERS: Mapping[int, tuple[int, int]] = {
    TensorProto.BOOL: (0, 1),
    TensorProto.INT8: (-(2**7), 2**7 - 1),
    TensorProto.UINT8: (0, 2**8 - 1),
    TensorProto.INT16: (-(2**15), 2**15 - 1),
    TensorProto.UINT16: (0, 2**16 - 1),
    TensorProto.INT32: (-(2**31), 2**31 - 1),
    TensorProto.UINT32: (0, 2**32 - 1),
    TensorProto.INT64: (-(2**63), 2**63 - 1),
    TensorProto.UINT64: (0, 2**64 - 1),
}
"""The least and the greatest value of each integer type. Booleans count as integers here."""

MOVES = frozenset(
    "Compress Concat DepthToSpace Expand Flatten Gather GatherElements GatherND Identity Reshape Slice SpaceToDepth "
    "Split Squeeze Tile Transpose Unsqueeze".split()
)
"""Operators whose outputs hold values of their inputs and no others."""


@dataclass(frozen=True)
class Types:
    """Element types and shapes of values by name. An unknown shape is absent, and an unknown extent is -1."""

    elements: Mapping[str, int]
    shapes: Mapping[str, tuple[int, ...]]

    @staticmethod
    def of(graph: onnx.GraphProto) -> Types:
        """The types that the graph declares."""
        elements = {t.name: t.data_type for t in graph.initializer}
        shapes = {t.name: tuple(t.dims) for t in graph.initializer}
        for info in (*graph.input, *graph.value_info, *graph.output):
            tensor = info.type.tensor_type
            if info.type.WhichOneof("value") == "tensor_type" and tensor.elem_type:
                elements[info.name] = tensor.elem_type
                if tensor.HasField("shape"):
                    shapes[info.name] = tuple(d.dim_value if d.HasField("dim_value") else -1 for d in tensor.shape.dim)
        return Types(elements, shapes)

    def inside(self, body: onnx.GraphProto) -> Types:
        """These types and those that a body in their scope declares."""
        own = Types.of(body)
        return Types({**self.elements, **own.elements}, {**self.shapes, **own.shapes})

    def is_integer(self, name: str) -> bool:
        """Whether the value is known to hold integers."""
        return self.elements.get(name, 0) in INTEGERS
