"""Values of 8 bits in a model that comes quantised: their steps, and constants and weights that are made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from collage.backends.base import UnsupportedError
from collage.backends.chains.transposes import TRANSPOSE
from collage.backends.onednn_kernels.description import INT8, UINT8
from collage.frontend.relax.fold import fold as fold_constant
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import Array, Graph, Node

if TYPE_CHECKING:
    import numpy.typing as npt

QUANTIZE, DEQUANTIZE = "quantize", "dequantize"
DTYPES = {"int8": INT8, "uint8": UINT8}


@dataclass(frozen=True)
class Steps:
    """A value as integers of 8 bits: (integer - zero) * scale."""

    value: int
    dtype: str
    scale: float
    zero: int


def constants_made(subgraph: Subgraph, root: Node) -> dict[int, Array]:
    """Values inside the subgraph that depend on constants only, such as a bias, without the weights."""
    graph = subgraph.model.graph
    path = weights_path(graph, root)
    made: dict[int, Array] = {}
    for node in subgraph.operators:
        given = [made.get(value, graph.constants.get(value)) for value in node.inputs]
        arguments = [each for each in given if each is not None]
        if len(arguments) < len(given) or node in path:
            continue
        if node.op == DEQUANTIZE:
            made[node.outputs[0]] = _dequantized(arguments, node)
        elif (
            array := fold_constant(node.op, arguments, node.attrs, graph.type_of(node.outputs[0]))
        ) is not None:
            made[node.outputs[0]] = array
    return made


def _dequantized(arguments: Sequence[Any], node: Node) -> Array:
    """What a node makes of constants, in float32 as ONNX Runtime computes it."""
    stored, scale, zero = arguments[:3]
    shape, axis = [1] * stored.ndim, node.attrs.get("axis")
    if scale.size > 1 and isinstance(axis, int):
        shape[axis] = -1
    whole = stored.astype(np.int64) - (zero.astype(np.int64).reshape(shape if zero.size > 1 else ()))
    return np.asarray(whole.astype(np.float32) * scale.reshape(shape if scale.size > 1 else ()))


def steps_of(subgraph: Subgraph, value: int) -> Steps:
    """The integers that a value inside the subgraph is made of. Raises UnsupportedError if it is made otherwise."""
    graph = subgraph.model.graph
    producer = graph.values[value].producer
    if producer is None or producer not in subgraph.members or graph.nodes[producer].op != DEQUANTIZE:
        raise UnsupportedError("an operand does not come quantised")
    node = graph.nodes[producer]
    return steps_at(graph, node, node.inputs[0])


def steps_at(graph: Graph, node: Node, value: int) -> Steps:
    """The steps of a node, whose integers are ``value``."""
    dtype = graph.type_of(value).dtype
    scale, zero = (_constant(graph, each) for each in node.inputs[1:3])
    if dtype not in DTYPES or scale.size != 1 or zero.size != 1 or scale.dtype != np.float32:
        raise UnsupportedError(f"{node.op} of {dtype} with {scale.size} scales")
    found = float(scale.reshape(-1)[0])
    if not (np.isfinite(found) and found > 0 and np.isfinite(np.float32(1 / found))):
        raise UnsupportedError(f"{node.op} with steps of {found}")
    if graph.is_constant(value):
        raise UnsupportedError("an operand is a constant")
    return Steps(value, dtype, found, int(zero.reshape(-1)[0].item()))


@dataclass(frozen=True)
class QuantisedWeights:
    """Whole numbers of 8 bits and a sign, and the factor of each output channel, which are those of ``axis``."""

    numbers: npt.NDArray[np.int64]
    scale: npt.NDArray[np.float64]
    axis: int


def weights_path(graph: Graph, root: Node) -> tuple[Node, ...]:
    """The nodes that make a root's weights of constants: one that dequantizes, and one that transposes a matrix."""
    found: list[Node] = []
    producer = graph.values[root.inputs[1]].producer if len(root.inputs) > 1 else None
    while producer is not None and len(found) < 2:
        node = graph.nodes[producer]
        if node.op not in (DEQUANTIZE, TRANSPOSE):
            return ()
        found.append(node)
        if node.op == DEQUANTIZE:
            return tuple(found) if all(map(graph.is_constant, node.inputs)) else ()
        producer = graph.values[node.inputs[0]].producer
    return ()


def weights_of(subgraph: Subgraph, root: Node, axis: int) -> QuantisedWeights:
    """The weights of a root. Raises UnsupportedError if their ``axis`` has not one factor for each channel."""
    graph = subgraph.model.graph
    path = weights_path(graph, root)
    if not path or any(node.id not in subgraph.members for node in path):
        raise UnsupportedError("the weights do not come quantised")
    *turned, node = path
    stored, scale, zero = (_constant(graph, each) for each in node.inputs[:3])
    along = node.attrs.get("axis")
    if stored.dtype.name not in DTYPES or scale.dtype != np.float32 or not np.isfinite(scale).all():
        raise UnsupportedError(f"weights of {stored.dtype}")
    if turned:
        if stored.ndim != 2 or turned[0].attrs["axes"] not in (None, (1, 0)):
            raise UnsupportedError("weights of several axes are transposed")
        stored, along = stored.T, 1 - along % 2 if isinstance(along, int) else None
    if stored.ndim < 2 or (axis == 1 and stored.ndim != 2):
        raise UnsupportedError("the weights are no matrix")
    channels = stored.shape[axis]
    if scale.size > 1 or zero.size > 1:
        right = isinstance(along, int) and along % stored.ndim == axis
        if not right or scale.shape != (channels,) or zero.shape != (channels,):
            raise UnsupportedError("the weights have other scales than one for each output channel")
    shape = [1] * stored.ndim
    shape[axis] = -1
    numbers = stored.astype(np.int64) - zero.astype(np.int64).reshape(shape)
    if numbers.min() < -128 or numbers.max() > 127:
        raise UnsupportedError("the weights have more than 8 bits without their zero points")
    return QuantisedWeights(numbers, np.broadcast_to(scale.astype(np.float64).reshape(-1), (channels,)), axis)


def _constant(graph: Graph, value: int) -> Any:
    found = graph.constants.get(value)
    if found is None:
        raise UnsupportedError("scales, zero points or weights are no constants")
    return np.asarray(found)
