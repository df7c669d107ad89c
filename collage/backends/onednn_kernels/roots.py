"""Which operators a chain may begin with, and who plans them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from collage.backends.base import UnsupportedError, Variant
from collage.backends.onednn_kernels import conv_plan, matmul
from collage.backends.onednn_kernels.builder import Draft
from collage.backends.onednn_kernels.chain import Chain, read_chain
from collage.backends.onednn_kernels.conv import CONVOLUTIONS, conv_problem
from collage.backends.onednn_kernels.matmul import matmul_problem
from collage.graph.dataflow import Graph, Node

if TYPE_CHECKING:
    from collage.frontend.subgraph import Subgraph


@dataclass(frozen=True)
class Root:
    """``problem`` says why a node cannot be taken (or ""), ``variants`` and ``plan`` serve a whole chain."""

    problem: Callable[[Graph, Node], str]
    variants: Callable[[Chain, int], Sequence[Variant]]
    plan: Callable[[Chain, Variant, int], Draft]


_CONV = Root(conv_problem, conv_plan.variants, conv_plan.plan)

ROOTS: Mapping[str, Root] = dict.fromkeys(CONVOLUTIONS, _CONV) | {
    "matmul": Root(matmul_problem, matmul.variants, matmul.plan),
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
    node = subgraph.operators[0]
    if problem := root_problem(subgraph.model.graph, node):
        raise UnsupportedError(f"{node.op}: {problem}")
    return ROOTS[node.op], read_chain(subgraph, node)
