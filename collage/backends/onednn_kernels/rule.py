"""Which subgraphs oneDNN is offered: an operator, and every run of functions after it that it can absorb.

Operators on quantised values have a rule of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from collage.backends.base import UnsupportedError
from collage.backends.chains.product_rule import grown
from collage.backends.chains.transposes import operand_transposes
from collage.backends.onednn_kernels.quantised import (
    CONVOLUTIONS,
    DEQUANTIZE,
    MAX_POOLS,
    QUANTIZE,
    weights_path,
)
from collage.backends.onednn_kernels.roots import root_problem, task_of
from collage.frontend.relax.op_kinds import COMPUTE_BOUND
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import Graph, Node
from collage.patterns.context import MatchContext
from collage.patterns.generator import text_of
from collage.patterns.match import Found


@dataclass(frozen=True)
class OneDnnRule:
    """Finds conv, conv+bias, conv+bias+relu, ... from each operator that oneDNN has, over its post-dominators."""

    max_nodes: int = 24

    def find(self, context: MatchContext) -> Iterator[Found]:
        """The chains of the model, each prefix that can be a kernel."""
        graph = context.graph
        for seed in graph.nodes:
            if (problem := root_problem(graph, seed)) or (problem := _absorbed(graph, seed)):
                yield Found((seed.id,), f"{type(self).__name__}: {context.ops[seed.id].name}", problem)
            else:
                chains = ((seed.id,), *grown(context, seed.id, self.max_nodes))
                yield from self._kernels(context, chains)
                if seed.op == "matmul" and (before := operand_transposes(graph, seed)):
                    yield from self._kernels(context, (tuple(sorted({*before, *each})) for each in chains))
            if sum(len(graph.users[value]) for value in seed.outputs) > 1:
                # several operators may together be one function of this result, as x * sigmoid(x) is
                yield from self._kernels(context, (each[1:] for each in grown(context, seed.id, self.max_nodes)))

    def _kernels(self, context: MatchContext, groups: Iterable[tuple[int, ...]]) -> Iterator[Found]:
        for nodes in groups:
            try:
                task_of(Subgraph(context.model, nodes))
            except UnsupportedError:
                continue
            yield Found(nodes, f"{type(self).__name__}: {text_of(context, nodes)}")


def _absorbed(graph: Graph, node: Node) -> str:
    """Why an operator is not offered by itself: it adds numbers to a convolution or product, where it costs nothing."""
    data = [v for v in node.inputs if not graph.is_constant(v)]
    producer = graph.values[data[0]].producer if len(data) == 1 else None
    if node.op not in ("add", "subtract") or producer is None or len(graph.users[data[0]]) > 1:
        return ""
    before = graph.nodes[producer]
    return f"part of {before.op}" if before.op in COMPUTE_BOUND and not root_problem(graph, before) else ""


_SATURATE = "this processor has no dot products of 8 bits, and adds pairs of products in 16, where they saturate"


@dataclass(frozen=True)
class QuantisedRule:
    """Finds operators on what is dequantized, with the functions that follow, up to where the result is quantized.

    Without ``exact_sums`` (see ``has_exact_int8_sums``) convolutions and products are refused.
    """

    max_nodes: int = 12
    exact_sums: bool = True

    def find(self, context: MatchContext) -> Iterator[Found]:
        """The longest chain of each operator, and for convolutions also all shorter ones, which give float32."""
        graph = context.graph
        for seed in graph.nodes:
            if seed.op not in (*CONVOLUTIONS, *MAX_POOLS, "matmul", "add"):
                continue
            weights = {node.outputs[0]: node.id for node in weights_path(graph, seed)}
            before = {_dequantized(graph, value) for value in seed.inputs if value not in weights}
            if None in before or any(len(graph.users[value]) > 1 for value in weights):
                continue
            nodes, last = {seed.id, *weights.values(), *(node for node in before if node is not None)}, seed
            while len(nodes) <= self.max_nodes:
                found = tuple(sorted(nodes))
                name = f"{type(self).__name__}: {text_of(context, found)}"
                try:
                    if not self.exact_sums and seed.op in (*CONVOLUTIONS, "matmul"):
                        raise UnsupportedError(_SATURATE)
                    task_of(Subgraph(context.model, found))
                    yield Found(found, name)
                except UnsupportedError as error:
                    if last.op == QUANTIZE:
                        yield Found(found, name, str(error))
                after = _only_user(graph, last)
                if after is None or last.op == QUANTIZE:
                    break
                last = graph.nodes[after]
                nodes |= {after, *_constant_sources(graph, last, nodes)}


def _dequantized(graph: Graph, value: int) -> int | None:
    """The node that dequantizes a value, if nobody else reads what it makes."""
    producer = graph.values[value].producer
    if producer is None or graph.nodes[producer].op != DEQUANTIZE or value in graph.output_set:
        return None
    return producer if len(graph.users[value]) == 1 else None


def _constant_sources(graph: Graph, node: Node, before: Collection[int]) -> set[int]:
    """The nodes that make constant operands of a node: those that dequantize and reshape a bias of 32 bits."""
    found: set[int] = set()
    left = [value for value in node.inputs if graph.values[value].producer not in before]
    while left:
        value = left.pop()
        producer = graph.values[value].producer
        if producer is None:
            if not graph.is_constant(value):
                return set()
        elif len(graph.users[value]) > 1:
            return set()
        else:
            found.add(producer)
            left += graph.nodes[producer].inputs
    return found


def _only_user(graph: Graph, node: Node) -> int | None:
    """The one node that reads what a node makes."""
    (value, *more) = node.outputs
    users = {*graph.users[value]}
    return users.pop() if len(users) == 1 and not more and value not in graph.output_set else None
