"""Tables of the angles by which the layers of a decoder rotate q and k, and how each of them attends."""

from __future__ import annotations

import numpy as np

from collage.errors import ModelError
from collage.graph.dataflow import Array
from collage.serve.attention import MOST_DIM, Heads, LayerAttention, Rotations
from collage.serve.decoder.description import Decoder, Layer, Rotation
from collage.serve.decoder.onnx_graph import PROBE, OnnxGraph
from collage.serve.decoder.rotary import angles, refuse_mixed_angles, same_angles


def tables_of_angles(graph: OnnxGraph, decoder: Decoder, length: int, name: str) -> tuple[Rotations, ...]:
    """The angles of each layer for sequences of ``length`` tokens; layers with the same ones share a table.

    ``graph`` is the decoder's, and ``name`` the model's in messages. Raises ModelError.
    """
    known: list[tuple[Rotation, Rotations]] = []
    found = []
    empty = np.zeros((length, 0), np.float32)
    for layer in decoder.layers:
        if (most := max(layer.dim, layer.value_dim)) > MOST_DIM:
            raise ModelError(f"{name} has heads of {most} elements; at most {MOST_DIM} can be served.")
        rotation = layer.rotation
        if rotation is None:
            found.append(Rotations(empty, empty))
            continue
        same = (table for other, table in known if same_angles(graph, other, rotation, length, PROBE.tokens))
        table = next(same, None)
        if table is None:
            table = _table(graph, layer, rotation, length, name)
            known.append((rotation, table))
        found.append(table)
    return tuple(found)


def attention_of(layer: Layer, rotations: Rotations) -> LayerAttention:
    """How a layer attends."""
    rotation = layer.rotation
    heads = Heads(
        layer.heads,
        layer.kv_heads,
        layer.dim,
        0 if rotation is None else rotation.elements,
        rotation is not None and rotation.interleaved,
        layer.scale,
        layer.softcap,
        layer.window,
        layer.slopes,
        layer.sinks,
        layer.value_dim,
    )
    return LayerAttention(heads, rotations)


def _table(graph: OnnxGraph, layer: Layer, rotation: Rotation, length: int, name: str) -> Rotations:
    halves = []
    for value in (rotation.cos, rotation.sin):
        table = angles(graph, value, length, PROBE.tokens)
        if table is None or table.shape[1] != rotation.elements // (1 + rotation.by_pair):
            raise ModelError(
                f"the rotary positions at {layer.node} of {name} depend on more than the tokens' positions, or lack "
                "angles of some elements, which cannot be served."
            )
        if rotation.by_pair:
            first, second = table, table
        elif rotation.interleaved:
            first, second = table[:, 0::2], table[:, 1::2]
        else:
            first, second = np.split(table, 2, axis=1)
        if _repeats(table, PROBE.tokens):
            raise ModelError(
                f"the rotary positions at {layer.node} of {name} are counted from the first new token, not from the "
                "first token of the sequence: export the decoder with position_ids."
            )
        refuse_mixed_angles(graph, value, table, PROBE.tokens)
        if not np.array_equal(first, second):
            raise ModelError(f"the rotary positions at {layer.node} of {name} turn pairs by two angles.")
        halves.append(np.ascontiguousarray(first, np.float32))
    return Rotations(*halves)


def _repeats(table: Array, period: int) -> bool:
    """Whether a table of angles begins again after so many positions, since nothing in the graph tells more of them."""
    several = table[:period]
    return (
        len(table) >= 2 * period
        and np.array_equal(several, table[period : 2 * period])
        and np.ptp(several, 0).any()
    )
