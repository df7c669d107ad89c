"""A topological order that keeps branches together, the positions where it is cut, and the windows between the cuts.

With few branches open at a time the op-level search (Algorithm 1) has few states. An interval of any topological order
is convex, so windows can be regions of graph engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from collage.graph.dataflow import Graph


def branch_order(graph: Graph) -> tuple[int, ...]:
    """Node ids in depth-first post-order from the outputs: a branch is finished before the next begins.

    The deepest predecessor goes first. A NASNet cell reads the two cells before it: the nearer one is then finished
    before branches begin that read the farther one only.
    """
    users = graph.successors
    roots = [p for value in graph.outputs if (p := graph.values[value].producer) is not None]
    roots += [node.id for node in graph.nodes if not users[node.id]]
    order: list[int] = []
    state = [0] * len(graph.nodes)  # 0: new, 1: its predecessors are on the way, 2: in the order
    stack = roots[::-1]
    while stack:
        node = stack[-1]
        if state[node] == 0:
            state[node] = 1
            # The top of the stack is visited next, so the deepest is pushed last; of equals the lowest id.
            before = sorted(graph.predecessors[node], key=lambda p: (graph.depth[p], -p))
            stack += [p for p in before if state[p] == 0]
        else:
            stack.pop()
            if state[node] == 1:
                state[node] = 2
                order.append(node)
    return tuple(order)


def cut_positions(graph: Graph, order: Sequence[int], *, longest: int = 64) -> tuple[int, ...]:
    """Positions at which the order falls into segments, ascending, without both ends.

    A value crosses position p when a node before p makes it and a node at p or after reads it. Values that live across
    more than half of the order (masks, embeddings) are not counted. A cut is a position that at most one value crosses.
    A segment of more than ``longest`` nodes is cut again at its narrowest positions, until none is longer or none can
    be cut.
    """
    crossing = _crossing(graph, order)
    count = len(order)
    edges = [0, *(p for p in range(1, count) if crossing[p] <= 1), count]
    cuts = set(edges[1:-1])
    pending = list(pairwise(edges))
    while pending:
        begin, end = pending.pop()
        if end - begin > max(longest, 1):
            fewest = min(crossing[begin + 1 : end])
            inner = [p for p in range(begin + 1, end) if crossing[p] == fewest]
            cuts.update(inner)
            pending += zip([begin, *inner], [*inner, end], strict=True)
    return tuple(sorted(cuts))


def _crossing(graph: Graph, order: Sequence[int]) -> list[int]:
    """For each position, the number of values that cross it and live across no more than half of the order."""
    position = {node: at for at, node in enumerate(order)}
    change = [0] * (len(order) + 1)
    for value in graph.values:
        if value.producer is None or not graph.users[value.id]:
            continue
        begin = position[value.producer]
        end = max(position[user] for user in graph.users[value.id])
        if 2 * (end - begin) <= len(order):
            change[begin + 1] += 1
            change[end + 1] -= 1
    return list(accumulate(change))


def windows(graph: Graph, order: Sequence[int], cuts: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Dyadic windows: aligned runs of 1, 2, 4, 8, ... segments between the cuts, and the whole graph.

    Each window is a tuple of ascending node ids; short ones come first, and none comes twice. There are at most twice
    as many windows as segments, and any run of segments consists of O(log) of them. A last window that is not full is
    left out, because its halves or the whole graph are there.
    """
    if not graph.nodes:
        return ()
    edges = [0, *cuts, len(order)]
    segments = len(edges) - 1
    found: dict[tuple[int, ...], None] = {}
    length = 1
    while length <= segments:
        for begin in range(0, segments - length + 1, length):
            found[tuple(sorted(order[edges[begin] : edges[begin + length]]))] = None
        length *= 2
    found[tuple(sorted(order))] = None
    return tuple(found)
