"""Which subgraphs cuBLASLt is offered: a product, transposes before it that it can do without, and its epilogue."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from collage.backends.base import UnsupportedError
from collage.backends.chains.growth import grown
from collage.backends.chains.transposes import operand_transposes
from collage.backends.cublas_kernels.task import ROOTS, task_of
from collage.frontend.subgraph import Subgraph
from collage.patterns.context import MatchContext
from collage.patterns.generator import text_of
from collage.patterns.match import Found


@dataclass(frozen=True)
class CublasRule:
    """Finds matmul, matmul + bias, matmul + bias + relu, ... over post-dominators."""

    max_nodes: int = 16

    def find(self, context: MatchContext) -> Iterator[Found]:
        """The products, each with a reason if cuBLASLt cannot have it, and the chains that begin with them."""
        for seed in context.graph.nodes:
            if seed.op not in ROOTS:
                yield Found(
                    (seed.id,),
                    f"{type(self).__name__}: {context.ops[seed.id].name}",
                    f"cuBLASLt has no {seed.op}",
                )
                continue
            before = operand_transposes(context.graph, seed)
            for nodes in ((seed.id,), *grown(context, seed.id, self.max_nodes)):
                yield from self._found(context, nodes, alone=len(nodes) == 1)
                if before:
                    yield from self._found(context, tuple(sorted({*before, *nodes})))

    def _found(
        self, context: MatchContext, nodes: tuple[int, ...], *, alone: bool = False
    ) -> Iterator[Found]:
        name = f"{type(self).__name__}: {text_of(context, nodes)}"
        try:
            task_of(Subgraph(context.model, nodes))
        except UnsupportedError as error:
            if alone:
                yield Found(nodes, name, str(error))
            return
        yield Found(nodes, name)
