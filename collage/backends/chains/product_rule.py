"""Finding products for a library: a root, transposes before it that the library can do without, and its epilogue."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from collage.backends.base import UnsupportedError
from collage.backends.chains.transposes import operand_transposes
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import OpKind
from collage.patterns.context import MatchContext
from collage.patterns.generator import text_of
from collage.patterns.match import Found

_ABSORBABLE = (OpKind.ELEMWISE, OpKind.BROADCAST, OpKind.INJECTIVE)


def grown(context: MatchContext, seed: int, max_nodes: int) -> Iterator[tuple[int, ...]]:
    """The seed with all nodes up to each of its post-dominators, as long as these are functions of its result.

    The shortest group comes first. The seed alone is not among them.
    """
    sink = seed
    while (after := context.post_dominator[sink]) is not None:
        sink = after
        nodes = context.between(seed, sink)
        if len(nodes) > max_nodes:
            return
        if any(context.ops[n].kind not in _ABSORBABLE for n in nodes if n != seed):
            return
        yield nodes


@dataclass(frozen=True)
class ProductRule(ABC):
    """Finds matmul, matmul + bias, matmul + bias + relu, ... over post-dominators, and other ``roots`` with theirs."""

    library: ClassVar[str]
    roots: ClassVar[frozenset[str]]

    max_nodes: int = 16

    @abstractmethod
    def take(self, subgraph: Subgraph) -> object:
        """Read the subgraph. Raises UnsupportedError if the library does not take it."""

    def find(self, context: MatchContext) -> Iterator[Found]:
        """The products, each with a reason if the library cannot have it, and the chains that begin with them."""
        for seed in context.graph.nodes:
            if seed.op not in self.roots:
                what = f"{type(self).__name__}: {context.ops[seed.id].name}"
                yield Found((seed.id,), what, f"{self.library} has no {seed.op}")
                continue
            chains = ((seed.id,), *grown(context, seed.id, self.max_nodes))
            before = operand_transposes(context.graph, seed) if seed.op == "matmul" else ()
            for nodes in chains:
                yield from self._found(context, nodes, alone=len(nodes) == 1)
                if before:
                    yield from self._found(context, tuple(sorted({*before, *nodes})))

    def _found(self, context: MatchContext, nodes: tuple[int, ...], *, alone: bool = False) -> Iterator[Found]:
        name = f"{type(self).__name__}: {text_of(context, nodes)}"
        try:
            self.take(Subgraph(context.model, nodes))
        except UnsupportedError as error:
            if alone:
                yield Found(nodes, name, str(error))
            return
        yield Found(nodes, name)
