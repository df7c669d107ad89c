"""The attention of a decoder as nodes: a cache as optimum exports it, ONNX's Attention, or none at all."""

from __future__ import annotations

import math

import numpy as np
from onnx import helper

from scripts.lib.decoders.emit import Emitter
from scripts.lib.decoders.rotary import rotated, rotations, turned
from scripts.lib.decoders.shape import ATTENTION, GPT2, PAST, PLAIN, DecoderShape


def attention(emit: Emitter, shape: DecoderShape, layer: int, x: str) -> str:
    """The layer's attention with its projections: [batch, sequence, width] to the same."""
    q, k, v = _latent(emit, shape, x) if shape.latent else _operands(emit, shape, x)
    if shape.form == ATTENTION:
        mixed = _operator(emit, shape, layer, q, k, v)
    else:
        if shape.form == PAST:
            k, v = _with_past(emit, layer, "key", k), _with_past(emit, layer, "value", v)
        groups = shape.heads // shape.kv_heads
        k, v = (_repeated(emit, each, groups) for each in (k, v))
        mixed = _product(emit, shape, q, k, v)
    joined = emit.op("Transpose", mixed, perm=[0, 2, 1, 3])
    wide = shape.heads * shape.value
    joined = emit.op("Reshape", joined, _sizes(emit, x, wide))
    scale = 1 / math.sqrt(shape.width * 2 * shape.layers)
    out = emit.op("MatMul", joined, emit.weight("attn.out", wide, shape.width, scale=scale))
    return emit.op("Add", out, emit.weight("attn.out.bias", shape.width, scale=0.1)) if _biased(shape) else out


def _operands(emit: Emitter, shape: DecoderShape, x: str) -> tuple[str, str, str]:
    """q, k and v [batch, heads, sequence, elements], of which q and k are rotated."""
    sizes = shape.head, shape.head, shape.value
    projected = zip(_projections(emit, shape, x), sizes, strict=True)
    q, k, v = (_heads(emit, x, each, size) for each, size in projected)
    if shape.family == GPT2:
        return q, k, v
    cos, sin = rotations(emit, shape)
    return rotated(emit, shape, q, cos, sin), rotated(emit, shape, k, cos, sin), v


def _latent(emit: Emitter, shape: DecoderShape, x: str) -> tuple[str, str, str]:
    """q, k and v of DeepSeek's latent attention: the last elements of q and k are rotated, and all heads share k's."""
    plain, scale = shape.head - shape.rotated, 1 / math.sqrt(shape.width)
    cos, sin = rotations(emit, shape)

    def split(rows: str, *sizes: int) -> list[str]:
        return emit.ops("Split", 2, rows, emit.constant(list(sizes)), axis=-1)

    rows = emit.weight("attn.q", shape.width, shape.heads * shape.head, scale=scale)
    first, last = split(_heads(emit, x, emit.op("MatMul", x, rows), shape.head), plain, shape.rotated)
    q = emit.op("Concat", first, turned(emit, shape, last, cos, sin), axis=-1)
    rows = emit.weight("attn.kv_a", shape.width, shape.latent + shape.rotated, scale=scale)
    inner, last = split(emit.op("MatMul", x, rows), shape.latent, shape.rotated)
    wide = shape.heads * (plain + shape.value)
    rows = emit.weight("attn.kv_b", shape.latent, wide, scale=1 / math.sqrt(shape.latent))
    first, v = split(_heads(emit, x, emit.op("MatMul", inner, rows), plain + shape.value), plain, shape.value)
    last = turned(emit, shape, _heads(emit, x, last, shape.rotated), cos, sin)
    shared = emit.op("Expand", last, emit.constant([1, shape.heads, 1, 1]))
    return q, emit.op("Concat", first, shared, axis=-1), v


def _biased(shape: DecoderShape) -> bool:
    return shape.family == GPT2


def _projections(emit: Emitter, shape: DecoderShape, x: str) -> list[str]:
    scale = 1 / math.sqrt(shape.width)
    if shape.family == GPT2:  # one product for the three, as GPT-2's Conv1D becomes
        wide = 3 * shape.width
        flat = emit.reshape(x, [-1, shape.width])
        weight, bias = (
            emit.weight("attn.c_attn", shape.width, wide, scale=scale),
            emit.weight("attn.c_attn.bias", wide, scale=0.1),
        )
        product = emit.op("Reshape", emit.op("Gemm", flat, weight, bias), _sizes(emit, x, wide))
        return emit.ops("Split", 3, product, emit.constant([shape.width] * 3), axis=2)
    found = []
    widths = shape.heads * shape.head, shape.kv_heads * shape.head, shape.kv_heads * shape.value
    for name, wide in zip("qkv", widths, strict=True):
        each = emit.op("MatMul", x, emit.weight(f"attn.{name}", shape.width, wide, scale=scale))
        if shape.bias:
            each = emit.op("Add", emit.weight(f"attn.{name}.bias", wide, scale=0.1), each)
        found.append(each)
    return found


def _sizes(emit: Emitter, x: str, *more: int) -> str:
    """The first two sizes of x, followed by others, as exporters write them."""
    sizes = emit.op("Shape", x)
    batch, length = (emit.unsqueeze(emit.op("Gather", sizes, emit.constant(axis)), 0) for axis in (0, 1))
    return emit.op("Concat", batch, length, emit.constant(list(more)), axis=0)


def _heads(emit: Emitter, x: str, flat: str, head: int) -> str:
    split = emit.op("Reshape", flat, _sizes(emit, x, -1, head))
    return emit.op("Transpose", split, perm=[0, 2, 1, 3])


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

    wide = emit.unsqueeze(x, 2)
    shape = emit.op("Concat", part(0, 2), emit.constant([groups]), part(2, 4), axis=0)
    heads = emit.op("Mul", part(1, 2), emit.constant([groups]))
    flat = emit.op("Concat", part(0, 1), heads, part(2, 4), axis=0)
    return emit.op("Reshape", emit.op("Expand", wide, shape), flat)


def _product(emit: Emitter, shape: DecoderShape, q: str, k: str, v: str) -> str:
    columns = emit.op("Transpose", k, perm=[0, 1, 3, 2])
    if shape.family == GPT2:
        scores = emit.op("Div", emit.op("MatMul", q, columns), emit.number(math.sqrt(shape.head)))
    else:  # both sides are scaled, as torch's attention is exported
        root = emit.number(shape.head**-0.25)
        scores = emit.op("MatMul", emit.op("Mul", q, root), emit.op("Mul", columns, root))
    scores = emit.op("Add", scores, _mask(emit, shape, scores))
    return emit.op("MatMul", emit.op("Softmax", scores, axis=-1), v)


def _mask(emit: Emitter, shape: DecoderShape, scores: str) -> str:
    """0 where a token sees another one, the lowest float elsewhere, [1 or batch, 1, sequence, all]."""
    sizes = emit.op("Shape", scores)
    new, whole = (emit.op("Gather", sizes, emit.constant(axis)) for axis in (2, 3))
    one = emit.constant(1)
    keys = emit.op("Range", emit.constant(0), whole, one)
    own = emit.op("Range", emit.op("Sub", whole, new), whole, one)
    later = emit.op("Greater", keys, emit.unsqueeze(own, 1))
    lowest = np.finfo(np.float32).min
    hidden = emit.op("Mul", emit.op("Cast", later, to=1), emit.number(lowest))
    if shape.form == PLAIN:
        return hidden
    absent = emit.op("Sub", emit.number(1.0), emit.op("Cast", "attention_mask", to=1))
    padding = emit.op("Mul", absent, emit.number(lowest))
    padding = emit.op("Unsqueeze", padding, emit.constant([1, 2]))
    return emit.op("Max", emit.op("Add", hidden, padding), emit.number(lowest))


def _operator(emit: Emitter, shape: DecoderShape, layer: int, q: str, k: str, v: str) -> str:
    past = [f"past_key_values.{layer}.{kind}" for kind in ("key", "value")]
    made = f"{emit.scope}/attention"
    outputs = [made, *(f"present.{layer}.{kind}" for kind in ("key", "value"))]
    emit.nodes.append(
        helper.make_node("Attention", [q, k, v, "", *past], outputs, f"{emit.scope}/Attention", is_causal=1)
    )
    return made
