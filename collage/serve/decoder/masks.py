"""Reading what masks and biases do to attention: windows, and slopes by distance. Others are refused.

They are computed for the last tokens of the longest sequence, and of a shorter one. A comparison of logits finds what
is not causal, and other things within the tokens that it has; windows are often longer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from collage.core.printable import printable
from collage.errors import ModelError
from collage.graph.dataflow import Array
from collage.serve.decoder.compiled import IDS, MASK, POSITIONS, Decoder, Layer
from collage.serve.decoder.onnx_graph import (
    GraphSizes,
    OnnxGraph,
    attribute,
    described,
    evaluated,
    read_decoder,
    unserved,
)
from collage.serve.decoder.recognise import Masking, scores_of

_MANY = 400
"""The most nodes that a mask is computed by."""
_MOST_ROWS = 8192
"""The longest sequence for which a mask is computed whole, where the graph has no cache."""
_ROWS = 29
"""The last tokens of a sequence whose masks are looked at."""
_SHORTER = 0.6
"""The share of the longest sequence that the shorter one has."""
_NEVER = 1e4
"""Scores are no larger than this, nor less than its negative: a bias that is so much less hides a key."""
_ERROR = 1e-4
"""How far biases may be off a straight line, in units of what they are, or of 1."""

_Bias = NDArray[np.float64]


@dataclass(frozen=True)
class _Seen:
    """What tokens see: so many of the last keys, or all where ``window`` is 0; and what heads lose by distance."""

    window: int = 0
    slopes: tuple[float, ...] = ()


def with_masks(model: onnx.ModelProto, graph: OnnxGraph, decoder: Decoder, length: int) -> Decoder:
    """The decoder with the windows and slopes of its layers, in sequences of up to ``length`` tokens.

    ``graph`` is the model's as it was recognised. Raises ModelError for masks and biases of other kinds.
    """
    cached = bool(set(graph.inputs) - {IDS, POSITIONS, MASK})
    length = length if cached else min(length, _MOST_ROWS)
    shorter = max(1, round(_SHORTER * length))
    seen = []
    for total in (length, shorter):
        rows = min(_ROWS, total) if cached else total
        sized = read_decoder(model, GraphSizes(rows, total - rows), graph.places)
        seen.append(_Masks(sized, rows, total).of(decoder.layers))
    layers = []
    for layer, longest, other in zip(decoder.layers, *seen, strict=True):
        same = np.allclose(other.slopes, longest.slopes, 1e-3) if other.slopes and longest.slopes else True
        if not same or other.window != (longest.window if longest.window < shorter else 0):
            raise ModelError(
                f"the attention at {printable(layer.node)} sees other tokens in a sequence of {length} than in one of "
                f"{shorter}: only windows of the same size in all sequences can be served. A shorter --max-length may "
                "be within what all of them see."
            )
        layers.append(replace(layer, window=longest.window, slopes=longest.slopes))
    return replace(decoder, layers=tuple(layers))


class _Masks:
    """The masks of a graph for the last ``rows`` of ``total`` tokens, which are the rows that it computes."""

    def __init__(self, graph: OnnxGraph, rows: int, total: int) -> None:
        self._graph = graph
        self._rows = rows
        self._total = total
        self._feeds = _feeds(graph, rows, total)
        self._known: dict[str, Array | None] = {}

    def of(self, layers: Sequence[Layer]) -> list[_Seen]:
        nodes = {
            node.name or node.output[0]: node for node in self._graph.nodes if node.op_type in ("Softmax", "Attention")
        }
        found: list[_Seen] = []
        known: dict[tuple[object, ...], _Seen] = {}  # layers share their masks
        for layer in layers:
            masking = _masking(self._graph, nodes[layer.node])
            key = (
                layer.heads,
                *((each.node.op_type, each.place, each.factor, *each.masks) for each in masking),
            )
            if key not in known:
                known[key] = self._seen(layer, masking)
            found.append(_within(known[key], _operator_window(nodes[layer.node]), self._total))
        return found

    def _seen(self, layer: Layer, masking: Sequence[Masking]) -> _Seen:
        biases = [bias for each in masking if (bias := self._bias(layer, each)) is not None]
        if not biases:
            return _Seen()
        node = masking[-1].node
        heads = max(len(bias) for bias in biases)
        found = []
        for head in range(heads):
            rows = np.zeros((min(self._rows, _ROWS), self._total))
            for bias in biases:
                rows = rows + bias[head if len(bias) > 1 else 0]
            found.append(self._line(node, rows))
        if len({window for window, _ in found}) > 1:
            raise unserved(node, "hides other tokens from each head")
        slopes = tuple(slope for _, slope in found)
        even = max(abs(slope) for slope in slopes) * self._total < _ERROR
        return _Seen(found[0][0], () if even else slopes * (layer.heads // heads))

    def _bias(self, layer: Layer, masking: Masking) -> _Bias | None:
        """What is added to scores [heads or 1, token, key], minus infinity for hidden keys; None for nothing."""
        node, place = masking.node, masking.place
        others = {at: self._value(node, name) for at, name in enumerate(node.input) if at != place and name}
        if node.op_type == "Where":
            hidden = others.pop(0) != (place == 1)
            (instead,) = others.values()
            if hidden.any() and not bool(np.all(np.asarray(instead, np.float64) * masking.factor <= -_NEVER)):
                raise unserved(node, "replaces scores of attention")
            return self._last_rows(layer, node, np.where(hidden, -np.inf, 0.0))
        if node.op_type in ("Max", "Min"):
            bounds = np.concatenate([each.reshape(-1) for each in others.values()])
            if np.all(bounds <= -_NEVER if node.op_type == "Max" else bounds >= _NEVER):
                return None
            raise unserved(node, "bounds scores of attention")
        if not others:
            return None
        (value,) = others.values()
        if node.op_type == "Sub" and place == 1:
            raise unserved(node, "takes scores of attention away")
        if value.dtype == np.bool_:
            added = np.where(value, 0.0, -np.inf)
        else:
            added = np.asarray(value, np.float64) * (masking.factor if node.op_type == "Add" else -masking.factor)
        return self._last_rows(layer, node, added)

    def _value(self, node: onnx.NodeProto, name: str) -> Array:
        if name not in self._known:
            self._known[name] = evaluated(self._graph, name, self._feeds, _MANY)
        found = self._known[name]
        if found is None:
            raise unserved(node, f"masks attention by more than positions and {MASK}")
        return found

    def _last_rows(self, layer: Layer, node: onnx.NodeProto, bias: Array) -> _Bias:
        """A bias of any shape that broadcasts to scores, for the last tokens [heads or 1, token, key]."""
        bias = bias.reshape((1,) * (2 - bias.ndim) + bias.shape)
        whole = self._graph.shapes.get(node.output[0], ())
        if math.prod(bias.shape[:-2]) not in (1, layer.heads) and math.prod(whole[:-2]) == layer.heads:
            bias = np.broadcast_to(bias, (*whole[:-2], *bias.shape[-2:]))
        try:
            rows = min(self._rows, _ROWS)
            found = bias.reshape(-1, *bias.shape[-2:])[:, -rows:]
            if len(found) in (1, layer.heads):
                return np.broadcast_to(found, (len(found), rows, self._total))
        except ValueError:  # it does not broadcast
            pass
        shape = "x".join(map(str, bias.shape))
        raise ModelError(
            f"{described(node)} has a mask of {shape} elements in a sequence of {self._total} tokens, which cannot be "
            "served. Where it is a table of fewer tokens, give their number as --max-length."
        )

    def _line(self, node: onnx.NodeProto, rows: _Bias) -> tuple[int, float]:
        """The window and the slope that biases of one head [token, key] have, 0 for none."""
        last = rows[-1]
        own = len(last) - 1
        step = last[own] - last[own - 1] if own else 0.0
        step = step if abs(step) < 0.5 * _NEVER else 0.0
        seen = self._first_seen(node, last, step)
        slope = float((last[own] - last[seen]) / (own - seen)) if own > seen else 0.0
        window = own + 1 - seen if seen else 0
        for number, row in enumerate(rows):
            place = own + 1 - len(rows) + number
            first = max(0, place + 1 - window) if window else 0
            here = row[: place + 1]
            line = here[place] + slope * (np.arange(first, place + 1) - place)
            straight = np.abs(here[first:] - line) <= _ERROR * np.maximum(1.0, np.abs(line))
            if not (np.isfinite(here[place]) and straight.all()) or self._first_seen(node, here, step) != first:
                raise ModelError(
                    f"{described(node)} lets the last of {place + 1} tokens see others neither alike, nor within a "
                    "window, nor by their distance alone: this attention cannot be served, except perhaps with a "
                    "shorter --max-length."
                )
        return window, slope

    def _first_seen(self, node: onnx.NodeProto, row: _Bias, step: float) -> int:
        """The first key that a token sees; all before it are hidden, and none after it."""
        own = len(row) - 1
        with np.errstate(invalid="ignore"):
            loss = row - row[own]
        expected = step * (np.arange(len(row)) - own)
        hidden = ~(loss > -_NEVER) & ~(np.abs(loss - expected) <= 1.0 + 0.1 * np.abs(expected))
        first = int(hidden.sum())
        if hidden[first:].any():
            raise ModelError(
                f"{described(node)} hides some tokens from the last of {len(row)} and not all before them: this "
                "attention cannot be served, except perhaps with a shorter --max-length."
            )
        return first


def _within(seen: _Seen, window: int, total: int) -> _Seen:
    """What is seen through a window of so many tokens, too; 0 for none."""
    if not 0 < window < total:
        return seen
    return replace(seen, window=min(window, seen.window or window))


def _operator_window(node: onnx.NodeProto) -> int:
    """The window that ONNX's operator Attention has from set 25 on, or 0."""
    before = attribute(node, "left_window_size", -1) if node.op_type == "Attention" else -1
    assert isinstance(before, int)
    return before + 1


def _masking(graph: OnnxGraph, node: onnx.NodeProto) -> Sequence[Masking]:
    """The nodes that mask the scores of the attention at ``node``; ONNX's operator masks them itself."""
    if node.op_type == "Softmax":
        found = scores_of(graph, node.input[0])
        return () if found is None else found.masking
    if len(node.input) > 3 and node.input[3]:
        return (Masking(helper.make_node("Add", ["", node.input[3]], [node.output[0]], node.name), 0),)
    return ()


def _feeds(graph: OnnxGraph, rows: int, total: int) -> dict[str, Array]:
    values = {POSITIONS: np.arange(total - rows, total)[None], MASK: np.ones((1, total))}
    return {
        name: value.astype(helper.tensor_dtype_to_np_dtype(graph.dtypes[name]))
        for name, value in values.items()
        if name in graph.inputs
    }
