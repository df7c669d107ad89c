"""Refusing attention in which the last token of a long sequence does not see all tokens alike: windows and biases.

A comparison of logits finds these within the tokens that it has; windows are often longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from collage.errors import ModelError
from collage.graph.dataflow import Array
from collage.serve.decoder.description import Decoder
from collage.serve.decoder.onnx_graph import IDS, MASK, POSITIONS, OnnxGraph, Sizes, described
from collage.serve.decoder.rotary import evaluated
from collage.serve.decoder.scores import Masking, scores_of
from collage.serve.decoder.sliced_tables import read_decoder

_MANY = 400
"""The most nodes that a mask is computed by."""
_MOST_ROWS = 8192
"""The longest sequence for which a mask is computed whole, where the graph has no cache."""
_NEVER = 1e4
"""Scores are no larger than this, nor less than its negative, so that such a bound changes none."""


def refuse_windows(model: onnx.ModelProto, graph: OnnxGraph, decoder: Decoder, length: int) -> None:
    """Raise ModelError where a mask in the model hides tokens from the last one of a sequence of ``length``.

    ``graph`` is the model's as it was recognised.
    """
    cached = bool(set(graph.inputs) - {IDS, POSITIONS, MASK})
    length = length if cached else min(length, _MOST_ROWS)
    tokens = 1 if cached else length
    sized = read_decoder(model, Sizes(tokens, length - tokens), graph.places)
    layers = {layer.node for layer in decoder.layers}
    feeds = _feeds(sized, tokens, length)
    known: dict[str, Array | None] = {}
    for node in sized.nodes:
        if (node.name or node.output[0]) in layers and node.op_type in ("Softmax", "Attention"):
            for masking in _masks(sized, node):
                for place, name in enumerate(masking.node.input):
                    if place == masking.place or not name:
                        continue
                    if name not in known:
                        known[name] = evaluated(sized, name, feeds, _MANY)
                    _check(masking, place, known[name], length)


def _masks(graph: OnnxGraph, node: onnx.NodeProto) -> Iterator[Masking]:
    """The nodes that mask the scores of the attention at ``node``; ONNX's operator masks them itself."""
    if node.op_type == "Softmax":
        found = scores_of(graph, node.input[0])
        yield from () if found is None else found.masking
    elif len(node.input) > 3 and node.input[3]:
        yield Masking(helper.make_node("Add", ["", node.input[3]], [node.output[0]], node.name), 0)


def _feeds(graph: OnnxGraph, tokens: int, length: int) -> dict[str, Array]:
    """What the graph is given for the last tokens of a sequence without padding."""
    values = {POSITIONS: np.arange(length - tokens, length)[None], MASK: np.ones((1, length))}
    return {
        name: value.astype(helper.tensor_dtype_to_np_dtype(graph.dtypes[name]))
        for name, value in values.items()
        if name in graph.inputs
    }


def _check(masking: Masking, place: int, value: Array | None, length: int) -> None:
    node = masking.node
    if node.op_type == "Where" and place:
        return  # what hidden scores are replaced by
    if value is None:
        raise ModelError(
            f"{described(node)} masks attention by what cannot be computed from positions and {MASK} alone, which "
            "cannot be served."
        )
    row: NDArray[Any] = value[..., -1, :] if value.ndim > 1 else value
    if node.op_type == "Where":
        harmless = row.shape[-1:] in ((), (1,), (length,)) and bool(np.all(row == (masking.place == 1)))
    elif node.op_type in ("Max", "Min"):
        harmless = bool(np.all(row <= -_NEVER if node.op_type == "Max" else row >= _NEVER))
    else:
        harmless = row.shape[-1:] in ((), (1,), (length,)) and _is_even(row)
    if not harmless:
        raise ModelError(
            f"{described(node)} lets the last of {length} tokens not see all tokens alike: its attention is not "
            "causal, or has a window, biases or bounds, which cannot be served, except perhaps with a shorter "
            "--max-length."
        )


def _is_even(row: Array) -> bool:
    """Whether all keys of a row have the same finite bias, or are all let through."""
    if row.dtype == np.bool_:
        return bool(row.all())
    if row.ndim == 0:
        return bool(np.isfinite(row))
    return bool(np.isfinite(row).all() and (row == row[..., :1]).all())
