"""Reading a subgraph as a chain: one operator, and the functions that its result goes through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from collage.backends.base import UnsupportedError
from collage.backends.onednn_kernels.activations import recognise
from collage.backends.onednn_kernels.eltwise_table import linear_of, single
from collage.backends.onednn_kernels.post_ops import Algorithm, Eltwise
from collage.frontend.op_kinds import is_view
from collage.graph.dataflow import Graph, Node, TensorType

if TYPE_CHECKING:
    from collage.frontend.subgraph import Subgraph

Floats: TypeAlias = "npt.NDArray[np.float32]"

BINARY = {
    "add": Algorithm.ADD,
    "multiply": Algorithm.MULTIPLY,
    "subtract": Algorithm.SUBTRACT,
    "divide": Algorithm.DIVIDE,
    "maximum": Algorithm.MAXIMUM,
    "minimum": Algorithm.MINIMUM,
}
_COMMUTES = ("add", "multiply", "maximum", "minimum")


@dataclass(frozen=True)
class Combine:
    """The result combined with value ``operand``, seen as a tensor of ``shape``, which has the result's rank."""

    algorithm: Algorithm
    operand: int
    shape: tuple[int, ...]


After: TypeAlias = "Eltwise | Combine"


@dataclass(frozen=True)
class Chain:
    """``root`` and what happens to its result; ``output`` is the value that comes out.

    ``subgraph.outputs`` is ``output`` alone. Its type may have another shape than the root's when views are
    among the chain; the elements are the same, in the same order.
    """

    subgraph: Subgraph
    root: Node
    after: tuple[After, ...]
    output: int

    @property
    def graph(self) -> Graph:
        """The model's graph."""
        return self.subgraph.model.graph

    def type_of(self, value: int) -> TensorType:
        """Type of a value."""
        return self.graph.type_of(value)

    def constant(self, value: int) -> Floats | None:
        """Content of a value, if it is a constant."""
        found = self.graph.constants.get(value)
        return None if found is None else np.asarray(found, np.float32)

    @property
    def viewed(self) -> bool:
        """Whether the result is handed out in another shape than the root computes it in."""
        return self.type_of(self.output).shape != self.type_of(self.root.outputs[0]).shape


def read_chain(subgraph: Subgraph, root: Node) -> Chain:
    """The subgraph as a chain that begins with ``root``. Raises UnsupportedError when it is none."""
    graph = subgraph.model.graph
    for node in subgraph.operators:
        for value in (*node.inputs, *node.outputs[:1]):
            kind = graph.type_of(value)
            if kind.dtype != "float32" or not kind.size:
                raise UnsupportedError(f"{node.op} of {kind}: oneDNN gets float32 with elements only")
    value = root.outputs[0]
    left = {node.id: node for node in subgraph.operators if node.id != root.id}
    after: list[After] = []
    while left:
        step = _step(graph, left, value, graph.type_of(root.outputs[0]).shape)
        for done in step.nodes:
            del left[done]
        after += step.after
        value = step.result
    if subgraph.outputs != (value,):
        raise UnsupportedError("a result inside the chain is used outside")
    return Chain(subgraph, root, tuple(after), value)


@dataclass(frozen=True)
class _Step:
    nodes: tuple[int, ...]
    after: tuple[After, ...]
    result: int


def _step(graph: Graph, left: dict[int, Node], value: int, shape: tuple[int, ...]) -> _Step:
    """The next link: what the nodes that read ``value`` do."""
    users = [node for node in graph.users[value] if node in left]
    if len(users) == 1:
        node = left[users[0]]
        if is_view(graph, node):
            return _Step((node.id,), (), node.outputs[0])
        if (found := single(node)) is not None:
            return _Step((node.id,), (found,), node.outputs[0])
        if (scalar := linear_of(graph, node, value)) is not None:
            return _Step((node.id,), (scalar,), node.outputs[0])
        if node.op in BINARY and node.inputs.count(value) == 1:
            other = node.inputs[1 - node.inputs.index(value)]
            producer = graph.values[other].producer
            if producer not in left and (node.inputs[0] == value or node.op in _COMMUTES):
                if graph.type_of(node.outputs[0]).shape != graph.type_of(value).shape:
                    raise UnsupportedError(f"{node.op} broadcasts the result to another shape")
                operand = _operand_shape(graph.type_of(other).shape, graph.type_of(value).shape, shape)
                return _Step((node.id,), (Combine(BINARY[node.op], other, operand),), node.outputs[0])
    if (match := recognise(graph, left, value)) is not None:
        return _Step(match.nodes, match.functions, match.result)
    names = sorted({left[user].op for user in users})
    raise UnsupportedError(
        f"{' and '.join(names) or 'nothing'} after {_producer(graph, value)} is no post-op"
    )


def _operand_shape(
    operand: tuple[int, ...], current: tuple[int, ...], root: tuple[int, ...]
) -> tuple[int, ...]:
    """The operand's shape when the result is seen in the root's shape, not in its current one."""
    padded = (*[1] * (len(current) - len(operand)), *operand)
    if current == root:
        return padded
    size = int(np.prod(operand))
    if size == 1:
        return (1,) * len(root)
    if padded == current:
        return root
    if size == padded[-1] and current[-1] == root[-1]:
        return (*[1] * (len(root) - 1), size)
    raise UnsupportedError(f"an operand of {operand} after the result was reshaped from {root} to {current}")


def _producer(graph: Graph, value: int) -> str:
    producer = graph.values[value].producer
    return "an input" if producer is None else graph.nodes[producer].op
