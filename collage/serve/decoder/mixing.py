"""Refusing operators that mix tokens outside of attention: those would see other requests, and padding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx

from collage.errors import ModelError
from collage.serve.decoder.onnx_graph import OnnxGraph, attribute, described
from collage.serve.decoder.segments import Segment

_ALWAYS = frozenset("DynamicQuantizeLinear CumSum LSTM GRU RNN Conv ConvTranspose".split())
"""Operators that look at several tokens by what they are; ``DynamicQuantizeLinear`` has one scale for all."""
_BY_DATA = frozenset("NonZero Compress Unique NonMaxSuppression".split())
"""Operators that make as many rows as the data says."""
_ALONG = frozenset("Softmax LogSoftmax Hardmax ArgMax ArgMin TopK LpNormalization".split())
"""Operators along one axis. A softmax of what depends on tokens is attention, or refused before."""

_OF_EXPERTS = "a mixture of experts can be served if its experts differ in their weights alone"


def refuse_mixing(graph: OnnxGraph, segments: Iterable[Segment], tokens: int) -> None:
    """Raise ModelError where a segment's operator mixes tokens or their positions.

    ``tokens`` tells their axis from all others.
    """
    varying = graph.from_tokens | graph.from_positions
    chosen = graph.dependent({node.output[1] for node in graph.nodes if node.op_type == "TopK"} - {""})
    for segment in segments:
        for node in segment.bare.graph.node:
            if not varying.intersection(node.input):
                continue
            if node.op_type in _BY_DATA:
                raise ModelError(
                    f"{described(node)} makes as many rows as the tokens say, and segments have fixed shapes: "
                    f"{_OF_EXPERTS}."
                )
            if _mixes(graph, node, tokens):
                more = f" ({_OF_EXPERTS})" if chosen.intersection(node.input) else ""
                raise ModelError(
                    f"{described(node)} mixes tokens outside of attention, where every token must be computed by "
                    f"itself: this decoder cannot be served{more}."
                )


def _mixes(graph: OnnxGraph, node: onnx.NodeProto, tokens: int) -> bool:
    if node.op_type in _ALWAYS:
        return True
    shape = graph.shapes.get(node.input[0])
    if node.op_type == "MatMul":
        second = graph.shapes.get(node.input[1])
        return tokens in (shape or (0,))[-1:] or (second is not None and tokens in second[-2:-1])
    if node.op_type in ("Gather", "Slice") and node.input[0] not in graph.from_tokens | graph.from_positions:
        return False  # of a table
    return shape is not None and any(shape[axis] == tokens for axis in _axes(graph, node, len(shape)))


def _axes(graph: OnnxGraph, node: onnx.NodeProto, rank: int) -> Sequence[int]:
    """The axes that a node reduces or normalises, or takes a part of."""
    if node.op_type.startswith("Reduce"):
        return _reduced(graph, node, rank)
    if node.op_type == "Slice":
        made = graph.shapes.get(node.output[0], graph.shapes[node.input[0]])
        return [axis for axis, size in enumerate(graph.shapes[node.input[0]]) if made[axis] != size]
    if node.op_type == "Gather":
        axis = attribute(node, "axis", 0)
        assert isinstance(axis, int)
        return (axis,)
    from_there = node.op_type in ("LayerNormalization", "RMSNormalization")
    if node.op_type not in _ALONG and not from_there:
        return ()
    axis = attribute(node, "axis", 0 if node.op_type in ("ArgMax", "ArgMin") else -1)
    assert isinstance(axis, int)
    return range(axis % rank, rank) if from_there else (axis,)


def _reduced(graph: OnnxGraph, node: onnx.NodeProto, rank: int) -> Sequence[int]:
    axes = attribute(node, "axes")
    if isinstance(axes, Sequence):
        return axes
    if len(node.input) > 1 and node.input[1]:
        found = graph.constants.get(node.input[1])
        return range(rank) if found is None else found.reshape(-1).tolist()
    return () if attribute(node, "noop_with_empty_axes", 0) else range(rank)
