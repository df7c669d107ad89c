"""Which subgraphs cuDNN is offered: an operator that it has, and what follows it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from collage.backends.base import UnsupportedError
from collage.backends.chains.product_rule import grown
from collage.backends.cudnn_kernels.attention import attention_nodes
from collage.backends.cudnn_kernels.normalisation import between_casts
from collage.backends.cudnn_kernels.task import ROOTS, task_of
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import Node
from collage.patterns.context import MatchContext
from collage.patterns.generator import text_of
from collage.patterns.match import Found


@dataclass(frozen=True)
class CudnnRule:
    """Finds conv2d, conv2d + bias, conv2d + bias + residual + relu, max_pool2d, ... over post-dominators.

    It finds attention around softmaxes, too.
    """

    max_nodes: int = 16

    def find(self, context: MatchContext) -> Iterator[Found]:
        """The operators, each with a reason if cuDNN cannot have it, and the chains that begin with them."""
        for seed in context.graph.nodes:
            name = f"{type(self).__name__}: {context.ops[seed.id].name}"
            if seed.op == "nn.softmax":
                yield from self._attention(context, seed)
            if seed.op not in ROOTS:
                yield Found((seed.id,), name, f"cuDNN gets no {seed.op}")
                continue
            if nodes := between_casts(context.graph, seed):
                yield self._one(context, nodes)
                continue
            for nodes in ((seed.id,), *grown(context, seed.id, self.max_nodes)):
                try:
                    task_of(Subgraph(context.model, nodes))
                except UnsupportedError as error:
                    if len(nodes) == 1:
                        yield Found(nodes, name, str(error))
                    continue
                yield Found(nodes, f"{type(self).__name__}: {text_of(context, nodes)}")

    def _attention(self, context: MatchContext, softmax: Node) -> Iterator[Found]:
        for nodes in attention_nodes(context.graph, softmax):
            yield self._one(context, nodes)

    def _one(self, context: MatchContext, nodes: tuple[int, ...]) -> Found:
        name = f"{type(self).__name__}: {text_of(context, nodes)}"
        try:
            task_of(Subgraph(context.model, nodes))
        except UnsupportedError as error:
            return Found(nodes, name, str(error))
        return Found(nodes, name)
