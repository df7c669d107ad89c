"""Growing a chain from its first operator over post-dominators (Figure 2.4 of the paper)."""

from __future__ import annotations

from collections.abc import Iterator

from collage.graph.dataflow import OpKind
from collage.patterns.context import MatchContext

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
