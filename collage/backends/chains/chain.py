"""Reading a subgraph as a chain: one operator, and its epilogue, the functions that its result goes through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from collage.backends.base import UnsupportedError
from collage.backends.chains.activations import recognise
from collage.backends.chains.attributes import integers, number
from collage.backends.chains.eltwise_table import linear_of, single
from collage.backends.chains.functions import DnnlAlgorithm, Eltwise
from collage.graph.dataflow import Graph, Node, TensorType
from collage.graph.views import is_view

if TYPE_CHECKING:
    from collage.frontend.subgraph import Subgraph

Floats: TypeAlias = "npt.NDArray[np.float32]"

_WIDE = ("float32",)
FLOATS = ("float32", "float16")
"""The dtypes that libraries for GPUs take."""

BINARY = {
    "add": DnnlAlgorithm.ADD,
    "multiply": DnnlAlgorithm.MULTIPLY,
    "subtract": DnnlAlgorithm.SUBTRACT,
    "divide": DnnlAlgorithm.DIVIDE,
    "maximum": DnnlAlgorithm.MAXIMUM,
    "minimum": DnnlAlgorithm.MINIMUM,
}
_COMMUTES = ("add", "multiply", "maximum", "minimum")


@dataclass(frozen=True)
class Combine:
    """A function that combines the result with ``operand``, a tensor of ``shape``, which has the result's rank.

    The operand is a value, or one of the chain's own constants where it is negative: -1 is the first.
    """

    algorithm: DnnlAlgorithm
    operand: int
    shape: tuple[int, ...]


EpilogueOp: TypeAlias = "Eltwise | Combine"
"""One function of an epilogue."""


@dataclass(frozen=True)
class Chain:
    """What happens to value ``base``, one function after the other; ``output`` is the value that comes out.

    ``base`` is the result of ``root``, or one of its inputs when the root is one of the functions itself.
    ``inputs`` and ``operators`` are the subgraph's, whose only output is ``output``. With views in the chain its type
    may have another shape than the base's: the elements are the same, in the same order.
    """

    graph: Graph = field(repr=False, compare=False)
    operators: tuple[Node, ...]
    inputs: tuple[int, ...]
    root: Node
    base: int
    epilogue: tuple[EpilogueOp, ...]
    output: int
    own: tuple[Floats, ...] = field(default=(), repr=False, compare=False)
    """Constants computed from those of the model."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the base."""
        return self.type_of(self.base).shape

    @property
    def dtype(self) -> str:
        """The dtype of all values."""
        return self.type_of(self.base).dtype

    def type_of(self, value: int) -> TensorType:
        """Type of a value."""
        return self.graph.type_of(value)

    def constant(self, operand: int) -> Floats | None:
        """Content of an operand in float32, if it is a constant."""
        if operand < 0:
            return self.own[-1 - operand]
        found = self.graph.constants.get(operand)
        return None if found is None else np.asarray(found, np.float32)

    @property
    def viewed(self) -> bool:
        """Whether there are views in the chain. Then only the plain layout means the same all along."""
        return any(is_view(self.graph, node) for node in self.operators)


def read_chain(subgraph: Subgraph) -> Chain:
    """The subgraph as its first operator and what follows it, in float32.

    Raises UnsupportedError when it is not that.
    """
    return _read_first(subgraph, _WIDE)


def read_float_chain(subgraph: Subgraph) -> Chain:
    """Like ``read_chain``, but all values may also be float16."""
    return _read_first(subgraph, FLOATS)


def _read_first(subgraph: Subgraph, dtypes: Sequence[str]) -> Chain:
    root, *others = subgraph.operators
    return _read(subgraph, root, root.outputs[0], {node.id: node for node in others}, dtypes)


def read_functions(subgraph: Subgraph) -> Chain:
    """The subgraph as functions of one of its first operator's inputs, that operator's function among them.

    Raises UnsupportedError when it is not that.
    """
    graph, root = subgraph.model.graph, subgraph.operators[0]
    shape = graph.type_of(root.outputs[0]).shape
    reason = f"{root.op} of these operands"
    for base in dict.fromkeys(root.inputs):
        if graph.is_constant(base) or graph.type_of(base).shape != shape:
            continue
        try:
            return _read(subgraph, root, base, {node.id: node for node in subgraph.operators})
        except UnsupportedError as error:
            reason = str(error)
    raise UnsupportedError(reason)


def _read(subgraph: Subgraph, root: Node, base: int, left: dict[int, Node], dtypes: Sequence[str] = _WIDE) -> Chain:
    chain = read_part(subgraph, root, base, left, dtypes)
    if subgraph.outputs != (chain.output,):
        raise UnsupportedError("a result inside the chain is used outside")
    return chain


def read_part(subgraph: Subgraph, root: Node, base: int, left: dict[int, Node], dtypes: Sequence[str] = _WIDE) -> Chain:
    """The nodes ``left`` of the subgraph as functions of value ``base``, whatever the other nodes do.

    All values have one of the ``dtypes``, which is the base's. Raises UnsupportedError when they are not that.
    """
    graph = subgraph.model.graph
    own = graph.type_of(base).dtype
    for node in subgraph.operators:
        for value in (*node.inputs, *node.outputs[:1]):
            kind = graph.type_of(value)
            if kind.dtype not in dtypes or not kind.size:
                names = " or ".join(dtypes)
                raise UnsupportedError(f"{node.op} of {kind}: libraries get {names} with elements only")
            if kind.dtype != own:
                raise UnsupportedError(f"{node.op} of {kind} beside {own}: libraries get one dtype at a time")
    value = base
    epilogue: list[EpilogueOp] = []
    constants: list[Floats] = []
    while left:
        step = _step(graph, left, value, graph.type_of(base).shape, constants)
        for done in step.nodes:
            del left[done]
        epilogue += step.functions
        value = step.result
    inputs = subgraph.inputs
    return Chain(graph, subgraph.operators, inputs, root, base, tuple(epilogue), value, tuple(constants))


@dataclass(frozen=True)
class _Step:
    nodes: tuple[int, ...]
    functions: tuple[EpilogueOp, ...]
    result: int


def _step(graph: Graph, left: dict[int, Node], value: int, shape: tuple[int, ...], own: list[Floats]) -> _Step:
    """The next functions: what the nodes that read ``value`` do. Constants that they need are added to ``own``."""
    users = [node for node in graph.users[value] if node in left]
    if len(users) == 1:
        node = left[users[0]]
        if is_view(graph, node):
            return _Step((node.id,), (), node.outputs[0])
        if (found := single(node)) is not None:
            return _Step((node.id,), (found,), node.outputs[0])
        if (scalar := linear_of(graph, node, value)) is not None:
            return _Step((node.id,), (scalar,), node.outputs[0])
        if shape == graph.type_of(value).shape and (normal := _batch_norm(graph, node, value, own)):
            return _Step((node.id,), normal, node.outputs[0])
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
    raise UnsupportedError(f"{' and '.join(names) or 'nothing'} after {_producer(graph, value)} is no post-op")


def _batch_norm(graph: Graph, node: Node, value: int, own: list[Floats]) -> tuple[EpilogueOp, ...] | None:
    """The functions of a batch normalisation with known statistics: a factor and a term for each channel."""
    known = [graph.constants.get(v) for v in node.inputs[1:]]
    if node.op != "nn.batch_norm" or node.inputs[0] != value or node.attrs.get("training"):
        return None
    gamma, beta, mean, variance = (None if a is None else np.asarray(a, np.float64) for a in known)
    if gamma is None or beta is None or mean is None or variance is None:
        return None
    factor = number(node, "epsilon") + variance
    factor = (gamma if node.attrs.get("scale") else 1.0) / np.sqrt(factor)
    term = (beta if node.attrs.get("center") else 0.0) - mean * factor
    rank = len(graph.type_of(value).shape)
    (axis,) = integers(node.attrs["axis"])
    shape = tuple(len(variance) if i == axis % rank else 1 for i in range(rank))
    own += [each.astype(np.float32).reshape(shape) for each in (factor, term)]
    algorithms = (DnnlAlgorithm.MULTIPLY, DnnlAlgorithm.ADD)
    return tuple(Combine(each, -len(own) + 1 - i, shape) for i, each in enumerate(algorithms))


def _operand_shape(operand: tuple[int, ...], current: tuple[int, ...], root: tuple[int, ...]) -> tuple[int, ...]:
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
