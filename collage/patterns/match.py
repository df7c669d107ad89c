"""Matches: the subgraphs that a backend may run, and those that it may not run, with the reason."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from collage.core.library_text import raised
from collage.graph.convexity import escaping, is_convex

if TYPE_CHECKING:
    from collage.patterns.context import MatchContext

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Match:
    """A set of nodes (ascending ids) that a pattern of a backend covers: (g, b) of §2.4.1."""

    nodes: tuple[int, ...]
    backend: str
    pattern: str


@dataclass(frozen=True)
class RejectedMatch:
    """Nodes that a pattern found but may not cover, and the reason."""

    nodes: tuple[int, ...]
    backend: str
    pattern: str
    reason: str


@dataclass(frozen=True)
class Found:
    """Nodes that one pattern has found, and the ``reason`` why they cannot be used, or "" if they can."""

    nodes: tuple[int, ...]
    pattern: str
    reason: str = ""


class MatchSource(Protocol):
    """The interface of what finds subgraphs for a backend: patterns, pattern rules and region rules."""

    def find(self, context: MatchContext) -> Iterator[Found]:
        """Find subgraphs in the model; the same one may be found more than once."""
        ...


Matches: TypeAlias = tuple[tuple[Match, ...], tuple[RejectedMatch, ...]]


def find_matches(context: MatchContext, backend: str, sources: Sequence[MatchSource]) -> Matches:
    """All matches of a backend, each node set once, and the rejected ones.

    Every match is convex, because a kernel runs as a whole. A source that raises finds nothing, with a warning.
    """
    matches: dict[tuple[int, ...], Match] = {}
    rejected: dict[tuple[int, ...], RejectedMatch] = {}
    for source in sources:
        for found in _found_by(source, context, backend):
            reason = found.reason
            if not reason and found.nodes not in matches and not is_convex(context.graph, found.nodes, context.reach):
                reason = "a path leaves the subgraph and comes back (not convex)"
            if reason:
                rejected[found.nodes] = RejectedMatch(found.nodes, backend, found.pattern, reason)
            else:
                matches.setdefault(found.nodes, Match(found.nodes, backend, found.pattern))
    kept = tuple(r for nodes, r in rejected.items() if nodes not in matches)
    return tuple(matches.values()), kept


def _found_by(source: MatchSource, context: MatchContext, backend: str) -> list[Found]:
    """What the source finds: nothing if it raises, for it may be a plug-in's own code."""
    try:
        return list(source.find(context))
    except Exception as error:
        log.warning(
            "backend %s: its pattern or rule %s is left out, since it raised %s",
            backend,
            getattr(source, "name", type(source).__name__),
            raised(error),
        )
        return []


def escaping_reason(context: MatchContext, nodes: tuple[int, ...], sink: int) -> str:
    """The reason why a fused kernel that writes only the result of ``sink`` cannot replace the nodes, or ""."""
    graph = context.graph
    others = [v for v in escaping(graph, nodes) if graph.values[v].producer != sink]
    if not others:
        return ""
    producer = graph.values[others[0]].producer
    assert producer is not None
    return f"the result of {context.model.describe_node(producer)} is also used outside (escaping intermediate)"
