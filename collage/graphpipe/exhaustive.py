"""All plans of a small graph, one by one: what the planners are compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from collage.graphpipe.costs import Costs, degrees
from collage.graphpipe.graph import BlockGraph
from collage.graphpipe.inflight import Config, in_flight
from collage.graphpipe.plan import Choice, Plan, assemble, stage_edges, topological

Layout: TypeAlias = "Sequence[frozenset[int]]"
"""Parts of a graph in an order in which no edge points back."""


def graph_layouts(costs: Costs) -> Iterator[Layout]:
    """All ways to cut the graph into stages (C1), at most one for each device."""
    count = len(costs.graph.blocks)

    def cut(at: int, parts: list[set[int]]) -> Iterator[Layout]:
        if at == count:
            edges = stage_edges(costs, parts)
            order = topological(len(parts), edges)
            if order is not None:
                yield [frozenset(parts[each]) for each in order]
            return
        for part in parts:
            part.add(at)
            yield from cut(at + 1, parts)
            part.remove(at)
        if len(parts) < costs.cluster.devices:
            yield from cut(at + 1, [*parts, {at}])

    yield from cut(0, [])


def interval_layouts(costs: Costs) -> Iterator[Layout]:
    """All chains of intervals: PipeDream's."""
    count = len(costs.graph.blocks)

    def cut(start: int, parts: Layout) -> Iterator[Layout]:
        if start == count:
            yield parts
        elif len(parts) < costs.cluster.devices:
            for end in range(start + 1, count + 1):
                yield from cut(end, [*parts, frozenset(range(start, end))])

    yield from cut(0, [])


def chain_layouts(costs: Costs) -> Iterator[Layout]:
    """All chains of stages: Piper's."""
    count = len(costs.graph.blocks)
    closed = [each for each in range(1 << count) if is_closed(costs.graph, each)]

    def cut(done: int, parts: Layout) -> Iterator[Layout]:
        if done == (1 << count) - 1:
            yield parts
        elif len(parts) < costs.cluster.devices:
            for each in closed:
                if each != done and each & done == done:
                    stage = frozenset(at for at in range(count) if (each & ~done) >> at & 1)
                    yield from cut(each, [*parts, stage])

    yield from cut(0, [])


def is_closed(graph: BlockGraph, mask: int) -> bool:
    """Whether a set of blocks has the predecessors of all of them."""
    return all(mask >> each.source & 1 or not mask >> each.target & 1 for each in graph.edges)


def best_plan(
    costs: Costs,
    layouts: Callable[[Costs], Iterator[Layout]] = graph_layouts,
    *,
    chain: bool = False,
    ks: Sequence[int] = (1,),
) -> Plan | None:
    """A plan of the least time per sample among all that fit in the memory, with every micro-batch and degree."""
    best: tuple[float, tuple[Choice, ...]] | None = None
    options = [(b, d, k) for b in costs.micro_batches for d in degrees(costs.cluster.devices) for k in ks]
    for parts in layouts(costs):
        edges = stage_edges(costs, parts) | ({(at, at + 1) for at in range(len(parts) - 1)} if chain else set())
        after = [[y for x, y in edges if x == at] for at in range(len(parts))]
        configs: dict[int, Config] = {}

        def extend(
            at: int,
            left: int,
            slowest: float,
            taken: tuple[Choice, ...],
            parts: Layout = parts,
            after: Sequence[Sequence[int]] = after,
            configs: dict[int, Config] = configs,
        ) -> None:
            nonlocal best
            if at < 0:
                best = (slowest, taken[::-1])
                return
            for b, degree, k in options:
                if degree + at > left or b * k > costs.mini_batch:
                    continue
                seconds = max(slowest, costs.tps(parts[at], b, degree))
                if seconds == float("inf") or (best is not None and seconds >= best[0]):
                    continue
                count = in_flight(b, k, [configs[each] for each in after[at]], costs.mini_batch)
                if costs.memory(parts[at], count, degree) <= costs.cluster.memory_bytes:
                    configs[at] = Config(b, k, count)
                    extend(at - 1, left - degree, seconds, (*taken, Choice(parts[at], b, degree, k)))

        extend(len(parts) - 1, costs.cluster.devices, 0.0, ())
    return None if best is None else assemble(costs, best[1], "exhaustive", chain=chain)
