"""Random series-parallel block graphs with clusters, to compare planners on."""

from __future__ import annotations

import random

from collage.graphpipe.cluster import Cluster, Link
from collage.graphpipe.costs import Costs
from collage.graphpipe.graph import Block, BlockGraph, Edge


def random_costs(rng: random.Random, most_blocks: int = 8, most_devices: int = 4, mini_batch: int = 8) -> Costs:
    """A random problem: series-parallel, perhaps with skips, with less memory than one device would need, or more."""
    count = rng.randint(1, most_blocks)
    edges = [(each.source, each.target, rng.choice((0.0, rng.random()))) for each in series_parallel(rng, count)]
    sizes = mini_batch.bit_length()
    blocks = []
    for at in range(count):
        fixed, each = rng.random() * rng.choice((0, 1)), rng.random() + 0.05
        forward = tuple(fixed + each * 2**size for size in range(sizes))
        weights = rng.choice((0, 1, 4)) * rng.random()
        backward = tuple(rng.choice((1.0, 2.0)) * seconds for seconds in forward)
        backward = tuple(max(backward[: size + 1]) for size in range(sizes))
        blocks.append(Block(f"b{at}", forward, backward, 0.1 * rng.random(), weights, rng.random()))
    graph = BlockGraph("random", tuple(blocks), tuple(Edge(*each) for each in edges))
    devices = rng.randint(1, most_devices)
    whole = sum(3 * each.weight_bytes + each.activation_bytes * mini_batch for each in blocks)
    memory = whole * rng.choice((0.15, 0.3, 0.5, 0.8, 1.2))
    link = Link(rng.choice((0, 0.05)), rng.choice((1.0, 10.0, 100.0)))
    slower = Link(2 * link.latency_s, link.bandwidth / 2)
    return Costs(graph, Cluster(devices, memory, link, slower, rng.choice((2, 4))), mini_batch)


def series_parallel(rng: random.Random, count: int) -> list[Edge]:
    """The edges of a random two-terminal series-parallel graph of so many inner blocks, without the terminals."""
    arcs: list[tuple[int, int]] = [(-1, -2)]
    for at in range(count):
        source, target = arcs[rng.randrange(len(arcs))]
        if rng.random() < 0.5:
            arcs.remove((source, target))  # else the new path is beside it
        arcs += [(source, at), (at, target)]
    order = [-1]
    waiting = {at: sum(target == at for _, target in arcs) for at in range(count)}
    for at in order:
        for source, target in arcs:
            if source == at and target >= 0:
                waiting[target] -= 1
                if not waiting[target]:
                    order.append(target)
    number = {at: position for position, at in enumerate(order[1:])}
    inner = sorted({(number[x], number[y]) for x, y in arcs if x >= 0 and y >= 0})
    return [Edge(x, y, 0.0) for x, y in inner]
