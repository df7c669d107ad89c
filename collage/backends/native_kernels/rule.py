"""Which subgraphs the kernels are offered: an operator, and every run of functions after it that they absorb."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from collage.backends.base import UnsupportedError
from collage.backends.chains.growth import grown
from collage.backends.native_kernels.algorithms import offers
from collage.frontend.subgraph import Subgraph
from collage.kernel.options import BuildOptions
from collage.patterns.context import MatchContext
from collage.patterns.generator import text_of
from collage.patterns.match import Found


@dataclass(frozen=True)
class NativeRule:
    """Finds conv, conv + bias, conv + bias + relu, ... over post-dominators, where an algorithm takes them."""

    max_nodes: int = 12
    exact: bool = False
    """Whether to find only what a direct algorithm takes."""
    precisions: frozenset[str] = frozenset()
    """Reduced precisions whose algorithms count, too."""

    def find(self, context: MatchContext) -> Iterator[Found]:
        """The operators, each with a reason if there is no kernel for it, and the chains that begin with them."""
        build = BuildOptions(exact=self.exact, precisions=self.precisions)
        for seed in range(len(context.graph.nodes)):
            for nodes in ((seed,), *grown(context, seed, self.max_nodes)):
                name = f"{type(self).__name__}: {text_of(context, nodes)}"
                try:
                    offers(Subgraph(context.model, nodes), build)
                    yield Found(nodes, name)
                except UnsupportedError as error:
                    if len(nodes) == 1:
                        yield Found(nodes, name, str(error))
                        break
