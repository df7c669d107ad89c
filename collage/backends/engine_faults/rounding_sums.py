"""ONNX nodes that add a large constant and take it away again, which rounds what is between (``graph.decisions``).

An engine that adds the constants first makes of the sum what it was before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from collage.frontend.read.scopes import constants_of, integer
from collage.frontend.read.weights import small_array
from collage.frontend.rewrite.bounds import MOVES
from collage.graph.decisions import MOST_ELEMENTS, leaves_little

_REASON = "is part of a sum that rounds: a large constant is added and taken away again"
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)

_Doubles: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True)
class _Offset:
    """The constant that a value has been moved by, and the nodes that have done so."""

    term: _Doubles
    nodes: frozenset[int] = frozenset()


_NONE = _Offset(np.zeros(()))


def rounding_sums(graph: onnx.GraphProto) -> Mapping[int, str]:
    """What is the matter with the nodes, by index, that are parts of such sums.

    Between the sums there may be products with constants, casts between floats, and operators that move data.
    """
    constants = constants_of(graph)
    offsets: dict[str, _Offset] = {}
    found: dict[int, str] = {}
    for index, node in enumerate(graph.node):
        values = [name for name in node.input if name not in constants]
        if len(values) != 1 or not node.output:
            continue
        before = offsets.get(values[0], _NONE)
        try:
            step = _step(node, values[0], constants, before)
        except ValueError:  # constants that do not broadcast
            step = None
        if step is None:
            continue
        moved, after = step
        nodes = before.nodes | {index}
        if leaves_little(moved, after):
            found.update(dict.fromkeys(nodes, _REASON))
        offsets.update(dict.fromkeys(node.output, _Offset(after, nodes)))
    return found


def _step(
    node: onnx.NodeProto, value: str, constants: Mapping[str, TensorProto], before: _Offset
) -> tuple[_Doubles, _Doubles] | None:
    """The constant in the value that the node makes, before and after it adds one; None if it has none."""
    arrays = [_array(constants[name]) for name in node.input if name in constants]
    if any(array is None for array in arrays) and node.op_type in ("Add", "Sub", "Sum", "Mul", "Div"):
        return None
    known = [array for array in arrays if array is not None]
    op, term = node.op_type, before.term
    if op in ("Add", "Sum"):
        return term, term + sum(known, np.zeros(()))
    if op == "Sub" and known:
        return (term, term - known[0]) if node.input[0] == value else (-term, known[0] - term)
    if op in ("Gemm", "Conv") and len(node.input) > 2 and node.input[0] == value:
        bias = _array(constants[node.input[2]]) if node.input[2] in constants else None
        same = bias is not None and bias.size > 0 and bool(np.ptp(bias) == 0)
        return (np.zeros(()), np.asarray(bias.flat[0])) if bias is not None and same else None
    if before is _NONE:
        return None
    if op == "Mul" and known:
        return term * known[0], term * known[0]
    if op == "Div" and known and node.input[0] == value:
        with np.errstate(all="ignore"):
            return term / known[0], term / known[0]
    if op == "Neg":
        return -term, -term
    if (
        op == "Identity"
        or (op == "Cast" and integer(node, "to") in _FLOATS)
        or (op in MOVES and term.size == 1)
    ):
        return term, term
    return None


def _array(tensor: TensorProto) -> _Doubles | None:
    """The constant in float64; None if it holds no floats, is large, or is not at hand."""
    found = small_array(tensor, MOST_ELEMENTS) if tensor.data_type in _FLOATS else None
    return None if found is None else found.astype(np.float64)
