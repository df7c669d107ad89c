"""Which operators a chain may begin with, and which functions plan them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from collage.backends.base import UnsupportedError
from collage.backends.chains.chain import BINARY, Chain, read_chain, read_functions
from collage.backends.chains.conv import conv_problem
from collage.backends.chains.eltwise_table import FUNCTIONS
from collage.backends.chains.pool import POOLS, pool_problem
from collage.backends.chains.product import matmul_problem
from collage.backends.chains.transposes import product_of
from collage.backends.onednn_kernels import (
    concat,
    conv_plan,
    elementwise,
    matmul,
    normalise,
    pooling,
    quantised,
)
from collage.backends.onednn_kernels.builder import Draft
from collage.backends.onednn_kernels.narrow import BOTH, DATA, RESULT, Ends, narrow_variants
from collage.graph.dataflow import Graph, Node
from collage.graph.storage import PLAIN
from collage.kernel.options import Variant

if TYPE_CHECKING:
    from collage.frontend.subgraph import Subgraph


T = TypeVar("T")


def _nothing(task: Any) -> None:
    """The result may overwrite none of the inputs."""


@dataclass(frozen=True)
class Root(Generic[T]):
    """What plans the chains that begin with some operators.

    ``problem`` says why such a node cannot be taken, or "". ``read`` makes a task of a subgraph. ``variants`` and
    ``plan`` serve a task, and ``in_place`` gives the value that its result may overwrite, if there is one. ``narrow``
    are the ends that may be bfloat16, and ``narrow_plain`` tells whether that is of use where both ends are plain.
    """

    problem: Callable[[Graph, Node], str]
    read: Callable[[Subgraph], T]
    variants: Callable[[T, int], Sequence[Variant]]
    plan: Callable[[T, Variant, int], Draft]
    in_place: Callable[[T], int | None] = _nothing
    narrow: Sequence[Ends] = (BOTH,)
    narrow_plain: bool = True


def _alone(subgraph: Subgraph) -> Chain:
    """A chain of one operator. Raises UnsupportedError when there is more to it."""
    chain = subgraph.parsed(read_chain)
    if chain.epilogue:
        raise UnsupportedError(f"nothing is fused to {chain.root.op}")
    return chain


_CONVOLUTIONS = [f"nn.conv{n}d{suffix}" for n in (1, 2, 3) for suffix in ("", "_transpose")]
_CONV = Root(conv_problem, conv_plan.read, conv_plan.variants, conv_plan.plan, narrow=(BOTH, DATA), narrow_plain=False)
_POOL = Root(pool_problem, pooling.read, pooling.variants, pooling.plan, narrow_plain=False)
_NORMALISATION = Root(
    normalise.normalise_problem, _alone, normalise.variants, normalise.plan, narrow=(BOTH, RESULT, DATA)
)
_QUANTISED = Root(quantised.problem, quantised.read, quantised.variants, quantised.plan, narrow=())
_FUNCTION = Root(
    elementwise.elementwise_problem,
    read_functions,
    elementwise.variants,
    elementwise.plan,
    elementwise.in_place,
)

ROOTS: Mapping[str, Root[Any]] = {
    **dict.fromkeys((*FUNCTIONS, *BINARY, "nn.batch_norm"), _FUNCTION),
    **dict.fromkeys(_CONVOLUTIONS, _CONV),
    **dict.fromkeys(POOLS, _POOL),
    **dict.fromkeys(normalise.NORMALISATIONS, _NORMALISATION),
    "concat": Root(concat.concat_problem, _alone, concat.variants, concat.plan),
    "matmul": Root(matmul_problem, matmul.read, matmul.variants, matmul.plan, narrow=(BOTH, DATA)),
}
"""Roots by the Relax names of their operators."""


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


def task_of(subgraph: Subgraph) -> tuple[Root[Any], Any]:
    """The subgraph as a task, parsed once, and the root that plans it. Raises UnsupportedError when it is none."""
    return subgraph.parsed(_read_task)


def reduced_variants(root: Root[Any], task: Any, wide: Sequence[Variant]) -> list[Variant]:
    """Variants in bfloat16 for those of the ``wide`` ones where that may be of use.

    Plain convolutions and poolings are slow in bfloat16, too, and only transforms would lead to them.
    """
    kept = [each for each in wide if root.narrow_plain or {*each.inputs, *each.outputs} != {PLAIN}]
    return list(narrow_variants(chain_of(task), kept, root.narrow))


def chain_of(task: Any) -> Chain:
    """The chain of a task."""
    chain: Chain = task if isinstance(task, Chain) else task.chain
    return chain


def _read_task(subgraph: Subgraph) -> tuple[Root[Any], Any]:
    if quantised.is_quantised(subgraph):
        return _QUANTISED, quantised.read(subgraph)
    node = product_of(subgraph)
    if node is None:
        raise UnsupportedError("transposes alone")
    if problem := root_problem(subgraph.model.graph, node):
        raise UnsupportedError(f"{node.op}: {problem}")
    root = ROOTS[node.op]
    return root, root.read(subgraph)
