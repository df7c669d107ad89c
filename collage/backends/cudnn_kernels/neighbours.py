"""What makes and what reads a value, where that is one operator."""

from __future__ import annotations

from collage.graph.dataflow import Graph, Node

__all__ = ["only_producer", "only_user"]


def only_user(graph: Graph, value: int) -> Node | None:
    """What reads a value that nobody else reads, and that is no output of the model."""
    users = graph.users[value]
    return graph.nodes[users[0]] if len(users) == 1 and value not in graph.output_set else None


def only_producer(graph: Graph, value: int) -> Node | None:
    """What makes a value that is used once."""
    producer = graph.values[value].producer
    return graph.nodes[producer] if producer is not None and only_user(graph, value) is not None else None
