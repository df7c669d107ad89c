"""Attention sinks: each head has a score beside those of the keys, which takes weight and has no value (gpt-oss)."""

from __future__ import annotations

import math

import onnx

from collage.errors import ModelError
from collage.serve.decoder.onnx_graph import OnnxGraph, attribute, described, evaluated


def before_sinks(graph: OnnxGraph, value: str) -> tuple[str, str]:
    """The scores of keys in what a softmax reads, and the value of the sinks that are put behind them.

    Without sinks these are the value itself and "". The largest score of each row may have been taken away.
    """
    joined = _before_shift(graph, value)
    node = graph.producers.get(joined)
    if node is None or node.op_type != "Concat" or len(node.input) != 2:
        return value, ""
    scores, sinks = node.input
    rank, axis = len(graph.shapes.get(joined, ())), attribute(node, "axis", 0)
    assert isinstance(axis, int)
    last = rank and axis % rank == rank - 1 and graph.shapes.get(sinks, (0,))[-1] == 1
    if not last or scores not in graph.from_tokens or sinks in graph.from_tokens:
        return value, ""
    return scores, sinks


def _before_shift(graph: OnnxGraph, value: str) -> str:
    """The value from each row of which its largest number is taken away, or the value itself."""
    node = graph.producers.get(value)
    if node is None or node.op_type != "Sub":
        return value
    largest = graph.producers.get(node.input[1])
    by_row = graph.shapes.get(node.input[1], (0,))[-1:] == (1,)
    if largest is None or largest.op_type != "ReduceMax" or largest.input[0] != node.input[0] or not by_row:
        return value
    return str(node.input[0])


def drops_sinks(graph: OnnxGraph, node: onnx.NodeProto) -> bool:
    """Whether a node takes all weights but the last one of each row."""
    if node.op_type != "Slice" or len(node.input) < 4:
        return False
    before, after = (graph.shapes.get(name, ()) for name in (node.input[0], node.output[0]))
    first = graph.scalar(node.input[1])
    return bool(before) and after == (*before[:-1], before[-1] - 1) and first == 0


def read_sinks(graph: OnnxGraph, node: onnx.NodeProto, value: str, heads: int) -> tuple[float, ...]:
    """The sinks of the attention at a node, one for each head. Raises ModelError."""
    found = evaluated(graph, value, {})
    if found is not None and math.prod(found.shape[:-2]) == heads:
        rows = found.reshape(heads, -1)
        if (rows == rows[:, :1]).all():
            return tuple(map(float, rows[:, 0]))
    raise ModelError(
        f"{described(node)} has sinks beside its scores that are not one constant for each head: they cannot be served."
    )
