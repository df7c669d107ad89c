"""RefuseUncovered: where nothing runs a node, nothing is measured in vain."""

from __future__ import annotations

from dataclasses import dataclass

from collage.compiler.cheapest import why_uncovered
from collage.compiler.state import Compilation, Context
from collage.errors import NoPlacementError


@dataclass(frozen=True)
class RefuseUncovered:
    """Looks for nodes of a family that no backend offers a kernel for. Other models go to engines whole then."""

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """The compilation as it is. Raises NoPlacementError for such nodes of a family."""
        if not compilation.source.family:
            return compilation
        regions = [offer.request.nodes for offer in compilation.offers]
        covered = set().union(*regions, *(view.nodes for view in compilation.views))
        left = [node for node in range(len(compilation.imported.graph.nodes)) if node not in covered]
        if left:
            raise NoPlacementError(why_uncovered(context, compilation, left))
        return compilation
