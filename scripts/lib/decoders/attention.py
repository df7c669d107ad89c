"""The attention of a decoder as nodes: a cache as optimum exports it, ONNX's Attention, or none at all."""

from __future__ import annotations

import math

import numpy as np
from onnx import helper

from scripts.lib.decoders.emit import Emitter
from scripts.lib.decoders.shape import ATTENTION, GPT2, PAST, PLAIN, DecoderShape

_THETA = 10000.0


def attention(emit: Emitter, shape: DecoderShape, layer: int, x: str) -> str:
    """The layer's attention with its projections: [batch, sequence, width] to the same."""
    q, k, v = _projections(emit, shape, x)
    q, k, v = (_heads(emit, x, each, shape.head) for each in (q, k, v))
    if shape.family != GPT2:
        cos, sin = _rotations(emit, shape)
        q, k = _rotated(emit, shape, q, cos, sin), _rotated(emit, shape, k, cos, sin)
    if shape.form == ATTENTION:
        mixed = _operator(emit, shape, layer, q, k, v)
    else:
        if shape.form == PAST:
            k, v = _with_past(emit, layer, "key", k), _with_past(emit, layer, "value", v)
        groups = shape.heads // shape.kv_heads
        k, v = (_repeated(emit, each, groups) for each in (k, v))
        mixed = _product(emit, shape, q, k, v)
    joined = emit.op("Transpose", mixed, perm=[0, 2, 1, 3])
    joined = emit.op("Reshape", joined, _sizes(emit, x, shape.width))
    scale = 1 / math.sqrt(shape.width * 2 * shape.layers)
    out = emit.op("MatMul", joined, emit.weight("attn.out", shape.width, shape.width, scale=scale))
    return (
        emit.op("Add", out, emit.weight("attn.out.bias", shape.width, scale=0.1)) if _biased(shape) else out
    )


def _biased(shape: DecoderShape) -> bool:
    return shape.family == GPT2


def _projections(emit: Emitter, shape: DecoderShape, x: str) -> list[str]:
    scale = 1 / math.sqrt(shape.width)
    if shape.family == GPT2:  # one product for the three, as GPT-2's Conv1D becomes
        wide = 3 * shape.width
        flat = emit.op("Reshape", x, emit.constant([-1, shape.width]))
        weight, bias = (
            emit.weight("attn.c_attn", shape.width, wide, scale=scale),
            emit.weight("attn.c_attn.bias", wide, scale=0.1),
        )
        product = emit.op("Reshape", emit.op("Gemm", flat, weight, bias), _sizes(emit, x, wide))
        return emit.ops("Split", 3, product, emit.constant([shape.width] * 3), axis=2)
    found = []
    for name, heads in (("q", shape.heads), ("k", shape.kv_heads), ("v", shape.kv_heads)):
        wide = heads * shape.head
        each = emit.op("MatMul", x, emit.weight(f"attn.{name}", shape.width, wide, scale=scale))
        if shape.bias:
            each = emit.op("Add", emit.weight(f"attn.{name}.bias", wide, scale=0.1), each)
        found.append(each)
    return found


def _sizes(emit: Emitter, x: str, *more: int) -> str:
    """The first two sizes of x, followed by others, as exporters write them."""
    sizes = emit.op("Shape", x)
    batch, length = (
        emit.op("Unsqueeze", emit.op("Gather", sizes, emit.constant(axis)), emit.constant([0]))
        for axis in (0, 1)
    )
    return emit.op("Concat", batch, length, emit.constant(list(more)), axis=0)


def _heads(emit: Emitter, x: str, flat: str, head: int) -> str:
    split = emit.op("Reshape", flat, _sizes(emit, x, -1, head))
    return emit.op("Transpose", split, perm=[0, 2, 1, 3])


def _rotations(emit: Emitter, shape: DecoderShape) -> tuple[str, str]:
    """cos and sin of all positions [batch, 1, sequence, head], which all layers share."""
    for node in emit.nodes:
        if node.name == "/rotary/cos":
            return "rotary.cos", "rotary.sin"
    scope, emit.scope = emit.scope, "model.rotary"
    half = shape.rotated // 2
    frequencies = (_THETA ** (-np.arange(half) / half)).astype(np.float32).reshape(1, half, 1)
    places = emit.op("Cast", emit.op("Unsqueeze", "position_ids", emit.constant([1])), to=1)
    angles = emit.op(
        "Transpose", emit.op("MatMul", emit.constant(frequencies, np.float32), places), perm=[0, 2, 1]
    )
    if shape.pairs:
        last = emit.constant([-1])
        wide = emit.op("Unsqueeze", angles, last)
        twice = emit.op("Reshape", emit.op("Concat", wide, wide, axis=-1), emit.constant([0, 0, -1]))
    else:
        twice = emit.op("Concat", angles, angles, axis=-1)
    twice = emit.op("Unsqueeze", twice, emit.constant([1]))
    for kind in ("Cos", "Sin"):
        name = kind.lower()
        emit.nodes.append(helper.make_node(kind, [twice], [f"rotary.{name}"], name=f"/rotary/{name}"))
    emit.scope = scope
    return "rotary.cos", "rotary.sin"


def _rotated(emit: Emitter, shape: DecoderShape, x: str, cos: str, sin: str) -> str:
    if shape.rotated == shape.head:
        return _turned(emit, shape, x, cos, sin)
    first = _part(emit, x, 0, shape.rotated)
    rest = _part(emit, x, shape.rotated, shape.head)
    return emit.op("Concat", _turned(emit, shape, first, cos, sin), rest, axis=-1)


def _turned(emit: Emitter, shape: DecoderShape, x: str, cos: str, sin: str) -> str:
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


def _with_past(emit: Emitter, layer: int, kind: str, new: str) -> str:
    whole = f"present.{layer}.{kind}"
    emit.nodes.append(
        helper.make_node(
            "Concat", [f"past_key_values.{layer}.{kind}", new], [whole], f"{emit.scope}/{kind}/Concat", axis=2
        )
    )
    return whole


def _repeated(emit: Emitter, x: str, groups: int) -> str:
    """Each K/V head, for its group of heads."""
    if groups == 1:
        return x
    sizes = emit.op("Shape", x)

    def part(start: int, end: int) -> str:
        return emit.op("Slice", sizes, emit.constant([start]), emit.constant([end]), emit.constant([0]))

    wide = emit.op("Unsqueeze", x, emit.constant([2]))
    shape = emit.op("Concat", part(0, 2), emit.constant([groups]), part(2, 4), axis=0)
    heads = emit.op("Mul", part(1, 2), emit.constant([groups]))
    flat = emit.op("Concat", part(0, 1), heads, part(2, 4), axis=0)
    return emit.op("Reshape", emit.op("Expand", wide, shape), flat)


def _product(emit: Emitter, shape: DecoderShape, q: str, k: str, v: str) -> str:
    turned = emit.op("Transpose", k, perm=[0, 1, 3, 2])
    if shape.family == GPT2:
        scores = emit.op(
            "Div", emit.op("MatMul", q, turned), emit.constant(math.sqrt(shape.head), np.float32)
        )
    else:  # both sides are scaled, as torch's attention is exported
        root = emit.constant(shape.head**-0.25, np.float32)
        scores = emit.op("MatMul", emit.op("Mul", q, root), emit.op("Mul", turned, root))
    scores = emit.op("Add", scores, _mask(emit, shape, scores))
    return emit.op("MatMul", emit.op("Softmax", scores, axis=-1), v)


def _mask(emit: Emitter, shape: DecoderShape, scores: str) -> str:
    """0 where a token sees another one, the lowest float elsewhere, [1 or batch, 1, sequence, all]."""
    sizes = emit.op("Shape", scores)
    new, whole = (emit.op("Gather", sizes, emit.constant(axis)) for axis in (2, 3))
    one = emit.constant(1)
    keys = emit.op("Range", emit.constant(0), whole, one)
    own = emit.op("Range", emit.op("Sub", whole, new), whole, one)
    later = emit.op("Greater", keys, emit.op("Unsqueeze", own, emit.constant([1])))
    lowest = np.finfo(np.float32).min
    hidden = emit.op("Mul", emit.op("Cast", later, to=1), emit.constant(lowest, np.float32))
    if shape.form == PLAIN:
        return hidden
    absent = emit.op("Sub", emit.constant(1.0, np.float32), emit.op("Cast", "attention_mask", to=1))
    padding = emit.op("Mul", absent, emit.constant(lowest, np.float32))
    padding = emit.op("Unsqueeze", padding, emit.constant([1, 2]))
    return emit.op("Max", emit.op("Add", hidden, padding), emit.constant(lowest, np.float32))


def _operator(emit: Emitter, shape: DecoderShape, layer: int, q: str, k: str, v: str) -> str:
    past = [f"past_key_values.{layer}.{kind}" for kind in ("key", "value")]
    made = f"{emit.scope}/attention"
    outputs = [made, *(f"present.{layer}.{kind}" for kind in ("key", "value"))]
    emit.nodes.append(
        helper.make_node("Attention", [q, k, v, "", *past], outputs, f"{emit.scope}/Attention", is_causal=1)
    )
    return made
