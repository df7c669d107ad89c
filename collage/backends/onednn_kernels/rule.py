"""Which subgraphs oneDNN is offered: an operator, and every run of functions after it that it can absorb."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from collage.backends.base import UnsupportedError
from collage.backends.chains.growth import grown
from collage.backends.chains.transposes import operand_transposes
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
                yield from self._kernels(
                    context, (each[1:] for each in grown(context, seed.id, self.max_nodes))
                )

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
