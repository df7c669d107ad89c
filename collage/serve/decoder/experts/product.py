"""The product of rows that choose their matrix: one node of Collage's own, and the same in ONNX's operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
from onnx import TensorProto, helper

DOMAIN, OPERATOR = "collage.experts", "ExpertProduct"


def product(rows: str, matrices: str, choice: str, result: str) -> onnx.NodeProto:
    """The node whose result [rows, n] has each row [depth] times the matrix that it chooses.

    ``rows`` [rows, depth] and ``matrices`` [experts, depth, n] are float32, and ``choice`` [rows] is int64.
    """
    return helper.make_node(OPERATOR, [rows, matrices, choice], [result], result, domain=DOMAIN)


def is_product(node: onnx.NodeProto) -> bool:
    """Whether a node is such a product."""
    return bool(node.domain == DOMAIN and node.op_type == OPERATOR)


def type_of_product(node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto]) -> onnx.TypeProto:
    """The type of the product's result, where the types of its operands are known. Raises KeyError."""
    rows, matrices = (types[name].tensor_type.shape.dim for name in node.input[:2])
    shape = [rows[0].dim_value if rows[0].HasField("dim_value") else None, matrices[2].dim_value]
    return helper.make_tensor_type_proto(TensorProto.FLOAT, shape)


def in_operators(nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """The nodes with each product as a ``Scan`` over its rows, which is what ONNX Runtime and backends read.

    Gathering all rows' matrices at once would be shorter, and needs as much memory as all of them together.
    """
    return [_scan(node) if is_product(node) else node for node in nodes]


def _scan(node: onnx.NodeProto) -> onnx.NodeProto:
    rows, matrices, choice = node.input
    inside = [f"{node.output[0]}/{name}" for name in ("row", "chosen", "matrix", "sums")]
    row, chosen, matrix, sums = inside
    body = helper.make_graph(
        [
            helper.make_node("Gather", [matrices, chosen], [matrix], axis=0),
            helper.make_node("MatMul", [row, matrix], [sums]),
        ],
        "row times the matrix that it chooses",
        [
            helper.make_tensor_value_info(row, TensorProto.FLOAT, None),
            helper.make_tensor_value_info(chosen, TensorProto.INT64, []),
        ],
        [helper.make_tensor_value_info(sums, TensorProto.FLOAT, None)],
    )
    return helper.make_node(
        "Scan", [rows, choice], list(node.output), node.name, body=body, num_scan_inputs=2
    )
