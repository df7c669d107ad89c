"""Matrix products with transposes around them, which cost nothing there.

Attention splits the heads, transposes, multiplies and transposes back; oneDNN takes matrices with any strides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from collage.backends.base import UnsupportedError
from collage.backends.chains.attributes import integers
from collage.backends.chains.chain import FLOATS, Chain, Combine, read_part
from collage.backends.chains.strided import Strided, dense
from collage.graph.dataflow import Graph, Node
from collage.graph.views import is_view

if TYPE_CHECKING:
    from collage.frontend.subgraph import Subgraph

TRANSPOSE = "permute_dims"


@dataclass(frozen=True)
class Transposed:
    """Value ``value`` of the model with its axes in another order."""

    value: int
    axes: tuple[int, ...]


@dataclass(frozen=True)
class ProductChain(Chain):
    """A chain that begins with a product, of whose inputs some are ``operands`` transposed.

    ``result_axes`` is the order of the result's axes that is handed out, or None for their own.
    """

    operands: Mapping[int, Transposed] = field(default_factory=dict)
    result_axes: tuple[int, ...] | None = None


def operand_transposes(graph: Graph, node: Node) -> tuple[int, ...]:
    """The ids of the transposes that only this product reads, and that it can do without."""
    found = []
    for value in dict.fromkeys(node.inputs):
        producer = graph.values[value].producer
        alone = graph.users[value] == (node.id,) and value not in graph.output_set
        if producer is None or not alone or len(graph.type_of(value).shape) < 3:
            continue
        before = graph.nodes[producer]
        if before.op == TRANSPOSE and len(value_axes := _axes(graph, before)) - 1 in value_axes[-2:]:
            found.append(producer)  # then rows or columns lie together
    return tuple(sorted(found))


def product_of(subgraph: Subgraph) -> Node | None:
    """The product that a subgraph which begins with transposes is about."""
    first = subgraph.operators[0]
    if first.op != TRANSPOSE:
        return first
    return next((node for node in subgraph.operators if node.op == "matmul"), None)


def read_product_chain(subgraph: Subgraph) -> ProductChain:
    """The subgraph as a product in float32 with transposes before and after it.

    Raises UnsupportedError when it is none.
    """
    return _read(subgraph, FLOATS[:1])


def read_float_product_chain(subgraph: Subgraph) -> ProductChain:
    """Like ``read_product_chain``, but all values may also be float16."""
    return _read(subgraph, FLOATS)


def _read(subgraph: Subgraph, dtypes: Sequence[str]) -> ProductChain:
    graph, root = subgraph.model.graph, product_of(subgraph)
    if root is None:
        raise UnsupportedError("there are transposes without a product")
    before = [n for n in operand_transposes(graph, root) if n in subgraph.members]
    left = {n.id: n for n in subgraph.operators if n.id != root.id and n.id not in before}
    last = next((n for n in left.values() if n.op == TRANSPOSE), None)
    tail = [] if last is None else [n for n in left.values() if n.id >= last.id]
    for node in tail:
        del left[node.id]
    chain = read_part(subgraph, root, root.outputs[0], left, dtypes)
    output = chain.output
    for node in tail:
        if node.inputs != (output,) or not (node is last or is_view(graph, node)):
            raise UnsupportedError(f"{node.op} follows a transpose")
        output = node.outputs[0]
    if subgraph.outputs != (output,):
        raise UnsupportedError("a result inside the chain is used outside")
    axes = None
    if last is not None:
        axes = _axes(graph, last)
        if len(axes) < 3 or graph.type_of(last.inputs[0]).shape != chain.shape:
            raise UnsupportedError("the transposed result is one matrix, or was reshaped")
        if axes[-1] != len(axes) - 1:
            raise UnsupportedError("the rows of the result do not lie together")
        if any(isinstance(each, Combine) for each in chain.epilogue):
            raise UnsupportedError("a result that is combined with others is not transposed")
    operands = {
        graph.nodes[n].outputs[0]: Transposed(graph.nodes[n].inputs[0], _axes(graph, graph.nodes[n])) for n in before
    }
    same = (chain.graph, chain.operators, chain.inputs, root, chain.base, chain.epilogue)
    return ProductChain(*same, output, chain.own, operands, axes)


def operand_view(shape: tuple[int, ...], axes: tuple[int, ...]) -> Strided:
    """A dense tensor of ``shape`` seen with its axes in the order ``axes``."""
    strides = dense(shape).strides
    return Strided(tuple(shape[axis] for axis in axes), tuple(strides[axis] for axis in axes))


def result_view(shape: tuple[int, ...], axes: tuple[int, ...]) -> Strided:
    """A tensor of ``shape`` that is dense when its axes are put in the order ``axes``."""
    strides = dense([shape[axis] for axis in axes]).strides
    return Strided(tuple(shape), tuple(strides[axes.index(axis)] for axis in range(len(shape))))


def _axes(graph: Graph, node: Node) -> tuple[int, ...]:
    rank = len(graph.type_of(node.inputs[0]).shape)
    axes = node.attrs["axes"]
    return tuple(reversed(range(rank))) if axes is None else tuple(a % rank for a in integers(axes))
