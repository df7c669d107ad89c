"""Which operators a chain may begin with, and who plans them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from collage.backends.base import UnsupportedError
from collage.backends.chains.chain import BINARY, Chain, read_chain, read_functions
from collage.backends.chains.conv import CONVOLUTIONS, conv_problem
from collage.backends.chains.eltwise_table import FUNCTIONS
from collage.backends.chains.product import matmul_problem
from collage.backends.chains.transposes import product_of, read_product_chain
from collage.backends.onednn_kernels import concat, conv_plan, elementwise, matmul, normalise, pooling
from collage.backends.onednn_kernels.builder import Draft
from collage.graph.dataflow import Graph, Node
from collage.kernel.options import Variant

if TYPE_CHECKING:
    from collage.frontend.subgraph import Subgraph


@dataclass(frozen=True)
class Root:
    """``problem`` says why a node cannot be taken (or ""), ``variants`` and ``plan`` serve a whole chain.

    ``read`` makes the chain of a subgraph that begins with the node, ``fuses`` tells whether there is anything
    that it absorbs, and ``in_place`` whether the result may overwrite the chain's base.
    """

    problem: Callable[[Graph, Node], str]
    variants: Callable[[Chain, int], Sequence[Variant]]
    plan: Callable[[Chain, Variant, int], Draft]
    read: Callable[[Subgraph, Node], Chain] = read_chain
    fuses: bool = True
    in_place: Callable[[Chain], bool] = lambda chain: False


_CONV = Root(conv_problem, conv_plan.variants, conv_plan.plan)
_POOL = Root(pooling.pool_problem, pooling.variants, pooling.plan)
_NORMALISATION = Root(normalise.normalise_problem, normalise.variants, normalise.plan, fuses=False)
_FUNCTION = Root(
    elementwise.elementwise_problem,
    elementwise.variants,
    elementwise.plan,
    read_functions,
    in_place=elementwise.in_place,
)

ROOTS: Mapping[str, Root] = {
    **dict.fromkeys((*FUNCTIONS, *BINARY, "nn.batch_norm"), _FUNCTION),
    **dict.fromkeys(CONVOLUTIONS, _CONV),
    **dict.fromkeys(pooling.POOLS, _POOL),
    **dict.fromkeys(normalise.NORMALISATIONS, _NORMALISATION),
    "concat": Root(concat.concat_problem, concat.variants, concat.plan, fuses=False),
    "matmul": Root(matmul_problem, matmul.variants, matmul.plan, read_product_chain),
}
"""By Relax name."""


def root_problem(graph: Graph, node: Node) -> str:
    """Why no chain begins with the node, or ""."""
    root = ROOTS.get(node.op)
    if root is None:
        return f"oneDNN has no {node.op}"
    for value in (*node.inputs, node.outputs[0]):
        kind = graph.type_of(value)
        if kind.dtype != "float32" or not kind.size:
            return f"{kind}: oneDNN gets float32 with elements only"
    return root.problem(graph, node)


def chain_of(subgraph: Subgraph) -> tuple[Root, Chain]:
    """The subgraph as a chain, and who plans it. Raises UnsupportedError when it is none."""
    node = product_of(subgraph)
    if node is None:
        raise UnsupportedError("transposes alone")
    if problem := root_problem(subgraph.model.graph, node):
        raise UnsupportedError(f"{node.op}: {problem}")
    root = ROOTS[node.op]
    chain = root.read(subgraph, node)
    if chain.after and not root.fuses:
        raise UnsupportedError(f"nothing is fused to {node.op}")
    return root, chain
