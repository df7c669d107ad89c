"""Method 1 of Listing 1: explicit patterns, which are matched with ``tvm.relax.dpl``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from collage.patterns.context import MatchContext, OpNode
from collage.patterns.match import Found, escaping_reason

Check = Callable[[tuple[OpNode, ...]], "bool | str"]
"""A function of the matched operators, in topological order: it returns True, False, or why they do not fit."""


class BackendPattern:
    """A pattern with a name for reports and an optional check on the matched operators."""

    def __init__(self, pattern: Any, name: str = "pattern", check: Check | None = None) -> None:
        self.pattern = pattern
        self.name = name
        self.check = check

    def find(self, context: MatchContext) -> Iterator[Found]:
        """Find the pattern, with each node of the model as its root."""
        for node in context.graph.nodes:
            nodes = context.relax_form.match(self.pattern, node.id)
            if nodes:
                yield Found(nodes, self.name, self._reason(context, nodes, node.id))

    def _reason(self, context: MatchContext, nodes: tuple[int, ...], root: int) -> str:
        if reason := escaping_reason(context, nodes, root):
            return reason
        if self.check is not None:
            answer = self.check(tuple(context.ops[n] for n in nodes))
            if answer is not True:
                return answer if isinstance(answer, str) else "the pattern's check refuses it"
        return ""
