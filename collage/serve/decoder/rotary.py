"""Recognising rotary positions (Su et al. 2021): x cos + turned(x) sin, of all elements of a head or of the first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from collage.errors import ModelError
from collage.graph.dataflow import Array
from collage.serve.decoder.description import POSITIONS, Rotation
from collage.serve.decoder.onnx_graph import OnnxGraph, attribute, described, evaluated


@dataclass(frozen=True)
class Rotated:
    """A value before its rotation, and the rotation."""

    value: str
    rotation: Rotation


def read_rotation(graph: OnnxGraph, node: onnx.NodeProto) -> Rotated | None:
    """The rotation that the node completes, or None where it completes none."""
    if node.op_type == "Add":
        return _sum(graph, node)
    if node.op_type == "Concat":
        return _partial(graph, node)
    if node.op_type == "RotaryEmbedding":
        return _operator(graph, node)
    return None


def _operator(graph: OnnxGraph, node: onnx.NodeProto) -> Rotated | None:
    """That of ONNX's operator, where it is given the angles of the tokens, and not a table of all positions."""
    x, cos, sin, *places = node.input
    shape, turned = graph.shapes.get(cos), attribute(node, "rotary_embedding_dim", 0)
    if any(places) or shape is None or graph.from_tokens.intersection((cos, sin)):
        return None
    elements = 2 * shape[-1]
    if turned not in (0, elements):
        return None
    return Rotated(x, Rotation(cos, sin, bool(attribute(node, "interleaved", 0)), elements, by_pair=True))


def _sum(graph: OnnxGraph, node: onnx.NodeProto) -> Rotated | None:
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


def _partial(graph: OnnxGraph, node: onnx.NodeProto) -> Rotated | None:
    """The first elements of each head rotated, and the others as they are."""
    axis = attribute(node, "axis", 0)
    shape = graph.shapes.get(node.output[0])
    if len(node.input) != 2 or shape is None or axis not in (-1, len(shape) - 1):
        return None
    inner = graph.producers.get(node.input[0])
    found = None if inner is None or inner.op_type != "Add" else _sum(graph, inner)
    if found is None:
        return None
    source = graph.producers.get(found.value)
    if (
        source is None
        or source.op_type not in ("Slice", "Split")
        or graph.shapes.get(source.input[0]) != shape
    ):
        return None
    whole, count = source.input[0], found.rotation.elements
    parts = [evaluated(graph, name, {whole: _numbered(shape)}) for name in (found.value, node.input[1])]
    if parts[0] is None or parts[1] is None:
        return None
    numbered = _numbered(shape)
    if not np.array_equal(parts[0], numbered[..., :count]) or not np.array_equal(
        parts[1], numbered[..., count:]
    ):
        return None
    return Rotated(whole, found.rotation)


def angles(graph: OnnxGraph, name: str, length: int, tokens: int) -> Array | None:
    """A table of a value of each position [length, elements], or None where it depends on more than positions.

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
    """Raise ModelError where the rows of a table from ``angles`` depend on what other positions there are, too.

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
    """A value [tokens, elements] for the positions of tokens, or None where it depends on more than these."""
    feeds: dict[str, Array] = {POSITIONS: places[None]}
    for each in graph.places:
        dtype = helper.tensor_dtype_to_np_dtype(graph.dtypes[each])
        feeds[each] = places.reshape(graph.shapes[each]).astype(dtype)
    found = evaluated(graph, name, feeds)
    return None if found is None or found.size % len(places) else found.reshape(len(places), -1)
