"""Following values through a graph, in the order of its nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush

import onnx

from collage.serve.decoder.onnx_graph import OnnxGraph


def follow(graph: OnnxGraph, names: Iterable[str], visit: Callable[[onnx.NodeProto], Iterable[str]]) -> None:
    """Visit the nodes that read these values, or others that are followed, each once and in order.

    ``visit`` returns those of the values that a node makes that are followed, too.
    """
    waiting: list[int] = []
    reached: set[int] = set()
    while True:
        places = {graph.order[id(user)] for name in names for user in graph.users.get(name, ())}
        for place in places - reached:
            heappush(waiting, place)
        reached |= places
        if not waiting:
            return
        names = visit(graph.nodes[heappop(waiting)])
