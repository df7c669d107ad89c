"""Positions of tokens: rotary ones (Su et al. 2021: x cos + turned(x) sin), and tables of learned ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from collage.core.printable import printable
from collage.errors import ModelError
from collage.graph.dataflow import Array
from collage.serve.attention import MOST_DIM, Heads, LayerAttention, Rotations
from collage.serve.decoder.compiled import MASK, POSITIONS, Decoder, Layer, Rotation
from collage.serve.decoder.onnx_graph import PROBE, OnnxGraph, attribute, described, evaluated, unserved


@dataclass(frozen=True)
class Rotated:
    value: str
    rotation: Rotation


def read_rotation(graph: OnnxGraph, node: onnx.NodeProto) -> Rotated | None:
    if node.op_type == "Add":
        return _rotated_sum(graph, node)
    if node.op_type == "Concat":
        return _first_rotated(graph, node)
    if node.op_type == "RotaryEmbedding":
        return _by_operator(graph, node)
    return None


def _by_operator(graph: OnnxGraph, node: onnx.NodeProto) -> Rotated | None:
    """That of ONNX's operator, where it is given the angles of the tokens, and not a table of all positions."""
    x, cos, sin, *places = node.input
    shape, turned = graph.shapes.get(cos), attribute(node, "rotary_embedding_dim", 0)
    if any(places) or shape is None or graph.from_tokens.intersection((cos, sin)):
        return None
    elements = 2 * shape[-1]
    if turned not in (0, elements):
        return None
    return Rotated(x, Rotation(cos, sin, bool(attribute(node, "interleaved", 0)), elements, by_pair=True))


def _rotated_sum(graph: OnnxGraph, node: onnx.NodeProto) -> Rotated | None:
    terms = [graph.producers.get(name) for name in node.input]
    if any(term is None or term.op_type != "Mul" for term in terms):
        return None
    pairs = []
    for term in terms:
        assert term is not None
        data = [name for name in term.input if name in graph.from_tokens]
        angles = [name for name in term.input if name not in graph.from_tokens]
        if len(data) != 1 or len(angles) != 1:
            return None
        pairs.append((data[0], angles[0]))
    for (x, cos), (turned, sin) in (pairs, pairs[::-1]):
        interleaved = _turns(graph, x, turned)
        if interleaved is not None:
            elements = graph.shapes[x][-1]
            return Rotated(x, Rotation(cos, sin, interleaved, elements))
    return None


def _turns(graph: OnnxGraph, x: str, turned: str) -> bool | None:
    """Whether ``turned`` is x turned by a right angle, in pairs of neighbours (True) or of halves (False), or None."""
    shape = graph.shapes.get(x)
    if shape is None or shape[-1] % 2:
        return None
    found = evaluated(graph, turned, {x: _numbered(shape)})
    if found is None or found.shape != shape:
        return None
    width = shape[-1]
    numbered = _numbered(shape)
    pairs = np.empty_like(numbered)
    pairs[..., 0::2], pairs[..., 1::2] = -numbered[..., 1::2], numbered[..., 0::2]
    if np.array_equal(found, pairs):
        return True
    halves = np.concatenate([-numbered[..., width // 2 :], numbered[..., : width // 2]], -1)
    return False if np.array_equal(found, halves) else None


def _numbered(shape: tuple[int, ...]) -> NDArray[np.float32]:
    return np.arange(1, 1 + int(np.prod(shape)), dtype=np.float32).reshape(shape)


def _first_rotated(graph: OnnxGraph, node: onnx.NodeProto) -> Rotated | None:
    axis = attribute(node, "axis", 0)
    shape = graph.shapes.get(node.output[0])
    if len(node.input) != 2 or shape is None or axis not in (-1, len(shape) - 1):
        return None
    inner = graph.producers.get(node.input[0])
    found = None if inner is None or inner.op_type != "Add" else _rotated_sum(graph, inner)
    if found is None:
        return None
    source = graph.producers.get(found.value)
    if source is None or source.op_type not in ("Slice", "Split") or graph.shapes.get(source.input[0]) != shape:
        return None
    whole, count = source.input[0], found.rotation.elements
    parts = [evaluated(graph, name, {whole: _numbered(shape)}) for name in (found.value, node.input[1])]
    if parts[0] is None or parts[1] is None:
        return None
    numbered = _numbered(shape)
    if not np.array_equal(parts[0], numbered[..., :count]) or not np.array_equal(parts[1], numbered[..., count:]):
        return None
    return Rotated(whole, found.rotation)


def angles(graph: OnnxGraph, name: str, length: int, tokens: int) -> Array | None:
    """A table of a value of each position [length, elements], or None if it depends on more than positions.

    ``tokens`` are those that the graph is for.
    """
    rows = []
    for start in range(0, length, tokens):
        found = _angles_of(graph, name, np.minimum(np.arange(start, start + tokens), length - 1))
        if found is None:
            return None
        rows.append(found)
    return np.concatenate(rows)[:length]


def refuse_mixed_angles(graph: OnnxGraph, name: str, table: Array, tokens: int) -> None:
    """Raise ModelError if the rows of a table from ``angles`` depend on what other positions there are, too.

    Positions from all over the table are evaluated together here, where ``angles`` takes neighbours.
    """
    length = len(table)
    groups = -(-length // tokens)
    for first in range(groups):
        places = np.minimum(np.arange(tokens) * groups + first, length - 1)
        found = _angles_of(graph, name, places)
        if found is None or not np.allclose(found, table[places], 1e-5, 1e-5, equal_nan=True):
            raise ModelError(
                f"{described(graph.producers[name])} gives angles of a token that depend on the positions of other "
                f"tokens within {length}, such as factors for long sequences: this decoder cannot be served, except "
                "perhaps with a shorter --max-length."
            )


def same_angles(graph: OnnxGraph, one: Rotation, other: Rotation, length: int, tokens: int) -> bool:
    """Whether two rotations are the same, by their first and last angles below ``length``; see ``angles``."""
    forms = ((each.interleaved, each.elements, each.by_pair) for each in (one, other))
    if len(set(forms)) > 1:
        return False
    for first, second in ((one.cos, other.cos), (one.sin, other.sin)):
        for start in (0, max(0, length - tokens)) if first != second else ():
            places = np.minimum(np.arange(start, start + tokens), length - 1)
            ours, theirs = (_angles_of(graph, name, places) for name in (first, second))
            if ours is None or theirs is None or not np.array_equal(ours, theirs):
                return False
    return True


def _angles_of(graph: OnnxGraph, name: str, places: NDArray[np.int64]) -> Array | None:
    """A value [tokens, elements] for the positions of tokens, or None if it depends on more than these."""
    feeds: dict[str, Array] = {POSITIONS: places[None]}
    for each in graph.places:
        dtype = helper.tensor_dtype_to_np_dtype(graph.dtypes[each])
        feeds[each] = places.reshape(graph.shapes[each]).astype(dtype)
    found = evaluated(graph, name, feeds)
    return None if found is None or found.size % len(places) else found.reshape(len(places), -1)


_USUAL_LENGTH = 4096
"""How far angles and lookups are compared where no table of positions ends."""
_LOOKUPS = frozenset("Gather GatherND GatherElements".split())


def check_angles(graph: OnnxGraph, layer: Layer, rotation: Rotation | None, length: int | None, tokens: int) -> None:
    """Raise ModelError if a layer's k has another rotation than its q.

    ``rotation`` is that of k, ``length`` the longest sequence, where a table ends, and ``tokens`` are those that the
    graph is for.
    """
    if rotation == layer.rotation:
        return
    if rotation is None or layer.rotation is None:
        same = False
    else:
        same = same_angles(graph, layer.rotation, rotation, length or _USUAL_LENGTH, tokens)
    if not same:
        raise ModelError(
            f"the attention at {printable(layer.node)} has q and k with different rotary positions, which cannot be "
            "served."
        )


def learned_positions(graph: OnnxGraph, tokens: int, wanted: int | None = None) -> int | None:
    """The positions that the shortest table has a row for, or None if there is none.

    ``tokens`` are those that the graph is for, and ``wanted`` is the longest sequence that is asked for. Raises
    ModelError where positions are looked up in what has an unknown number of rows, or by what cannot be computed.
    """
    offsets = dict.fromkeys((POSITIONS, *graph.places), 0)
    limits = []
    for node in graph.nodes:
        if graph.from_tokens.intersection(node.output):
            continue
        if node.op_type in _LOOKUPS and graph.from_positions.intersection(node.input[1:2]):
            if _is_table(graph, node.input[0], tokens):
                limits += _limits(graph, node, offsets, tokens, wanted)
        else:
            known = [name for name in node.input if name in offsets]
            added = _offset(graph, node) if known else None
            if node.op_type == "Where" and node.input[2] not in offsets:
                continue
            if added is not None:
                offsets.update(dict.fromkeys(node.output, offsets[known[-1]] + added))
    if limits and min(limits) < 1:
        raise ModelError("its positions are beyond the table that they are looked up in, so it cannot be served.")
    return min(limits, default=None)


def _is_table(graph: OnnxGraph, name: str, tokens: int) -> bool:
    """Whether a value depends on no input of the model, not even on how long the sequence is."""
    rows = graph.shapes.get(name, (0,))[:1]
    if name in graph.constants and name not in graph.weights:
        return rows not in ((tokens,), graph.shapes.get(MASK, ())[1:])  # as the mask's rows are
    waiting, seen = [name], set()
    while waiting:
        each = waiting.pop()
        if each in graph.inputs or each in graph.places:
            return False
        if each in graph.producers and each not in seen:
            seen.add(each)
            waiting += graph.producers[each].input
    return True


def _limits(
    graph: OnnxGraph, node: onnx.NodeProto, offsets: Mapping[str, int], tokens: int, wanted: int | None
) -> list[int]:
    """The positions that a lookup has rows for, where they end; ``offsets`` are what is added to positions."""
    shape, index = graph.shapes.get(node.input[0]), node.input[1]
    if shape is None:
        raise unserved(node, "looks positions up in a table of unknown length")
    sizes = _indexed(graph, node, shape)
    if index in offsets and len(sizes) == 1:
        return [sizes[0] - offsets[index]]
    length = max(wanted or 0, _USUAL_LENGTH)
    found = angles(graph, index, length, tokens)
    if found is None:
        if wanted is not None:
            return []
        raise ModelError(
            f"{described(node)} looks up positions in a table of unknown length: give the longest sequence with "
            "--max-length."
        )
    rows: NDArray[Any] = found.reshape(length, -1, len(sizes))
    ends = np.array(sizes)
    beyond = ((rows >= ends) | (rows < -ends)).any((1, 2))
    return [int(beyond.argmax())] if beyond.any() else []


def _indexed(graph: OnnxGraph, node: onnx.NodeProto, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes of the axes that the elements of an index count along."""
    if node.op_type == "GatherND":
        first, several = attribute(node, "batch_dims", 0), graph.shapes.get(node.input[1], (1,))[-1]
        assert isinstance(first, int)
        return shape[first : first + several]
    axis = attribute(node, "axis", 0)
    assert isinstance(axis, int)
    return (shape[axis],)


def _offset(graph: OnnxGraph, node: onnx.NodeProto) -> int | None:
    """What a node adds to the last of its inputs that are positions; None if it does something else with them."""
    if node.op_type == "Where":
        condition = graph.producers.get(node.input[0])
        if condition is None or condition.op_type != "Less" or condition.input[0] != node.input[2]:
            return None
        return 0 if graph.scalar(condition.input[1]) == 0 else None  # the others are rows from a table's end
    if node.op_type in ("Transpose", "Unsqueeze", "Squeeze", "Cast", "Identity", "Reshape", "Expand"):
        return 0
    if node.op_type in ("Add", "Sub"):
        numbers = [graph.scalar(name) for name in node.input]
        found = [int(number) for number in numbers if number is not None and np.isfinite(number)]
        if len(found) == 1 and (node.op_type == "Add" or numbers[0] is None):
            return found[0] if node.op_type == "Add" else -found[0]
    return None


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
            table = _table_of(graph, layer, rotation, length, name)
            known.append((rotation, table))
        found.append(table)
    return tuple(found)


def attention_of(layer: Layer, rotations: Rotations) -> LayerAttention:
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


def _table_of(graph: OnnxGraph, layer: Layer, rotation: Rotation, length: int, name: str) -> Rotations:
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
    """Whether a table of angles begins again after so many positions, since nothing in the graph says more of them."""
    several = table[:period]
    return len(table) >= 2 * period and np.array_equal(several, table[period : 2 * period]) and np.ptp(several, 0).any()
