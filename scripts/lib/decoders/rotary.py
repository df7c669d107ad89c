"""The rotary positions of a decoder as nodes (Su et al. 2021)."""

from __future__ import annotations

import numpy as np
from onnx import helper

from scripts.lib.decoders.emit import Emitter
from scripts.lib.decoders.shape import DecoderShape

_THETA = 10000.0


def rotations(emit: Emitter, shape: DecoderShape) -> tuple[str, str]:
    """cos and sin of all positions [batch, 1, sequence, head], which all layers share."""
    for node in emit.nodes:
        if node.name == "/rotary/cos":
            return "rotary.cos", "rotary.sin"
    scope, emit.scope = emit.scope, "model.rotary"
    half = shape.rotated // 2
    frequencies = (_THETA ** (-np.arange(half) / half)).astype(np.float32).reshape(1, half, 1)
    places = emit.op("Cast", emit.unsqueeze("position_ids", 1), to=1)
    angles = emit.op("Transpose", emit.op("MatMul", emit.number(frequencies), places), perm=[0, 2, 1])
    if shape.pairs:
        last = emit.constant([-1])
        wide = emit.op("Unsqueeze", angles, last)
        twice = emit.op("Reshape", emit.op("Concat", wide, wide, axis=-1), emit.constant([0, 0, -1]))
    else:
        twice = emit.op("Concat", angles, angles, axis=-1)
    twice = emit.unsqueeze(twice, 1)
    for kind in ("Cos", "Sin"):
        name = kind.lower()
        emit.nodes.append(helper.make_node(kind, [twice], [f"rotary.{name}"], name=f"/rotary/{name}"))
    emit.scope = scope
    return "rotary.cos", "rotary.sin"


def rotated(emit: Emitter, shape: DecoderShape, x: str, cos: str, sin: str) -> str:
    """Heads of q or k [batch, heads, sequence, head], whose first elements are rotated."""
    if shape.rotated == shape.head:
        return turned(emit, shape, x, cos, sin)
    first = _part(emit, x, 0, shape.rotated)
    rest = _part(emit, x, shape.rotated, shape.head)
    return emit.op("Concat", turned(emit, shape, first, cos, sin), rest, axis=-1)


def turned(emit: Emitter, shape: DecoderShape, x: str, cos: str, sin: str) -> str:
    """The elements of a head that are rotated, after that."""
    size = shape.rotated
    if shape.pairs:
        even, odd = _part(emit, x, 0, size, 2), _part(emit, x, 1, size, 2)
        last = emit.constant([-1])
        columns = [emit.op("Unsqueeze", each, last) for each in (emit.op("Neg", odd), even)]
        across = emit.op("Reshape", emit.op("Concat", *columns, axis=-1), emit.constant([0, 0, 0, -1]))
    else:
        first, second = _part(emit, x, 0, size // 2), _part(emit, x, size // 2, size)
        across = emit.op("Concat", emit.op("Neg", second), first, axis=-1)
    return emit.op("Add", emit.op("Mul", x, cos), emit.op("Mul", across, sin))


def _part(emit: Emitter, x: str, start: int, end: int, step: int = 1) -> str:
    """Elements of each head."""
    bounds = (emit.constant([each]) for each in (start, end, 3, step))
    return emit.op("Slice", x, *bounds)
