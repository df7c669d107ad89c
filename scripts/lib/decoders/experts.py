"""A mixture of experts as exporters write it: a loop over them, all of them for all tokens, or tokens in order."""

from __future__ import annotations

import math

from onnx import TensorProto, helper

from scripts.lib.decoders.emit import Emitter
from scripts.lib.decoders.shape import ATTENTION, PAST, PLAIN, DecoderShape

_ZERO = helper.make_tensor("zero", TensorProto.FLOAT, [1], [0.0])


def mixture(emit: Emitter, shape: DecoderShape, x: str) -> str:
    """The value [batch, sequence, width] that the experts make of ``x``, with weights that add up to 1 for a token."""
    tokens = emit.reshape(x, [-1, shape.width])
    router = emit.weight("mlp.gate", shape.width, shape.experts, scale=2 / math.sqrt(shape.width))
    scores = emit.op("Softmax", emit.op("MatMul", tokens, router), axis=-1)
    best, choice = emit.ops("TopK", 2, scores, emit.constant([shape.chosen]), axis=-1)
    gates = emit.op("Div", best, _sum(emit, shape, best))
    forms = {PAST: _as_optimum, ATTENTION: _as_torch, PLAIN: _all_for_all}
    form = _sorting if shape.sorts else forms[shape.form]
    found = form(emit, shape, tokens, gates, choice)
    return emit.op("Reshape", found, emit.op("Shape", x))


def _sum(emit: Emitter, shape: DecoderShape, x: str) -> str:
    return emit.op("ReduceSum", x, emit.constant([-1]), keepdims=1)


def _as_optimum(emit: Emitter, shape: DecoderShape, tokens: str, gates: str, choice: str) -> str:
    """The form of torch's older exporter (``index_add_`` as a scatter into zeros that is added)."""
    levels = emit.op("OneHot", choice, emit.constant([shape.experts]), emit.constant([0, 1]), axis=-1)
    mask = emit.op("Transpose", levels, perm=[2, 1, 0])
    total = emit.op("ConstantOfShape", emit.op("Shape", tokens), value=_ZERO)
    row = emit.unsqueeze(tokens, 0)
    factors = emit.unsqueeze(gates, 2)
    flat = emit.op("Flatten", factors, axis=2)
    slots = emit.op("Gather", emit.op("Shape", factors), emit.constant(1), axis=0)
    for expert in range(shape.experts):
        chosen = emit.op("Cast", emit.op("Gather", mask, emit.constant(expert), axis=0), to=TensorProto.BOOL)
        places = emit.op("Transpose", emit.op("NonZero", chosen), perm=[1, 0])
        slot, token = (
            emit.op("Squeeze", each, emit.constant([1]))
            for each in emit.ops("Split", 2, places, emit.constant([1, 1]), axis=1)
        )
        rows = emit.op("Reshape", emit.op("Gather", row, token, axis=1), emit.constant([-1, shape.width]))
        made = _expert(emit, shape, expert, rows)
        factor = emit.op("Gather", flat, emit.op("Add", slot, emit.op("Mul", token, slots)), axis=0)
        made = emit.op("Mul", made, emit.reshape(factor, [-1, 1]))
        sizes = emit.op("Shape", made)
        to = emit.op("Expand", emit.unsqueeze(token, 1), sizes)
        zeros = emit.op("ConstantOfShape", emit.op("Shape", total), value=_ZERO)
        total = emit.op("Add", total, emit.op("ScatterElements", zeros, to, made, axis=0))
    return total


def _as_torch(emit: Emitter, shape: DecoderShape, tokens: str, gates: str, choice: str) -> str:
    """The form of torch's exporter of today."""
    number = emit.constant(list(range(shape.experts)))
    same = emit.op("Equal", emit.unsqueeze(choice, -1), number)
    mask = emit.op("Transpose", emit.op("Cast", same, to=TensorProto.INT64), perm=[2, 1, 0])
    total = emit.op("Expand", emit.number(0.0), emit.op("Shape", tokens))
    row = emit.op("Transpose", emit.unsqueeze(tokens, 0), perm=[1, 0, 2])
    factors = emit.unsqueeze(gates, 2)
    for expert in range(shape.experts):
        chosen = emit.op("Gather", mask, emit.constant(expert), axis=0)
        places = emit.op("Transpose", emit.op("NonZero", chosen), perm=[1, 0])
        slot, token = (
            emit.op("Slice", places, *(emit.constant([each]) for each in (first, first + 1, 1))) for first in (0, 1)
        )
        rows = emit.op("Transpose", emit.op("GatherND", row, token), perm=[1, 0, 2])
        made = _expert(emit, shape, expert, emit.reshape(rows, [-1, shape.width]))
        factor = emit.op("GatherND", factors, emit.op("Concat", token, slot, axis=-1))
        made = emit.op("Mul", made, factor)
        total = emit.op("ScatterND", total, token, made, reduction="add")
    return total


def _all_for_all(emit: Emitter, shape: DecoderShape, tokens: str, gates: str, choice: str) -> str:
    """The form of GPT-OSS: all experts compute all tokens, and most results are multiplied by zero."""
    wide, inner = 1 / math.sqrt(shape.width), 1 / math.sqrt(shape.inner * 2 * shape.layers)
    experts = shape.experts

    def weight(name: str, *sizes: int, scale: float) -> str:
        return emit.weight(f"mlp.experts.{name}", experts, *sizes, scale=scale)

    def every_second(x: str, first: int) -> str:
        end, axis, step = (emit.constant([each]) for each in (2**63 - 1, 2, 2))
        return emit.op("Slice", x, emit.constant([first]), end, axis, step)

    count = emit.op("Gather", emit.op("Shape", tokens), emit.constant([0]), axis=0)
    sizes = emit.op("Concat", count, emit.constant([experts]), axis=0)
    scores = emit.op("ScatterElements", emit.op("ConstantOfShape", sizes, value=_ZERO), choice, gates, axis=1)
    rows = emit.op(
        "Reshape",
        emit.op("Tile", tokens, emit.constant([experts, 1])),
        emit.constant([experts, -1, shape.width]),
    )
    both = emit.op("MatMul", rows, weight("gate_up", shape.width, 2 * shape.inner, scale=wide))
    both = emit.op("Add", both, weight("gate_up.bias", 1, 2 * shape.inner, scale=0.1))
    gate = emit.op("Clip", every_second(both, 0), "", emit.number(7.0))
    active = emit.op("Mul", emit.op("Mul", gate, emit.op("Sigmoid", gate)), every_second(both, 1))
    made = emit.op("MatMul", active, weight("down", shape.inner, shape.width, scale=inner))
    made = emit.op("Add", made, weight("down.bias", 1, shape.width, scale=0.1))
    made = emit.reshape(made, [experts, 1, -1, shape.width])
    factors = emit.op("Reshape", emit.op("Transpose", scores, perm=[1, 0]), emit.constant([experts, 1, -1, 1]))
    return emit.op("ReduceSum", emit.op("Mul", made, factors), emit.constant([0]), keepdims=0)


def _sorting(emit: Emitter, shape: DecoderShape, tokens: str, gates: str, choice: str) -> str:
    """The form of Granite: rows in the order of their experts are split where one expert's end."""
    wide, inner = 1 / math.sqrt(shape.width), 1 / math.sqrt(shape.inner * 2 * shape.layers)
    experts, zero = shape.experts, emit.number(0.0)
    count = emit.op("Gather", emit.op("Shape", tokens), emit.constant([0]), axis=0)
    zeros = emit.op("Expand", zero, emit.op("Concat", count, emit.constant([experts]), axis=0))
    one = helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])
    ones = emit.op("ConstantOfShape", emit.op("Shape", choice), value=one)
    marks = emit.op("ScatterElements", zeros, choice, ones, axis=1)
    sums = emit.op("ReduceSum", emit.op("Cast", marks, to=TensorProto.INT64), emit.constant([0]), keepdims=0)
    bounds = [(emit.constant([each]), emit.constant([each + 1])) for each in range(experts)]
    lengths = emit.op("Concat", *(emit.op("Slice", sums, *each, emit.constant([0])) for each in bounds), axis=0)
    flat = emit.reshape(choice, [-1])
    order = emit.ops("TopK", 2, flat, emit.op("Shape", flat), axis=0, largest=0)[1]
    place = emit.op("Cast", order, to=TensorProto.FLOAT)
    token = emit.op("Floor", emit.op("Div", place, emit.number(shape.chosen)))
    token = emit.unsqueeze(emit.op("Cast", token, to=TensorProto.INT64), -1)
    factors = emit.op("Gather", emit.reshape(gates, [-1]), order, axis=0)

    def by_expert(rows: str, matrices: str) -> str:
        parts = emit.ops("Split", experts, rows, lengths, axis=0)
        chosen = [emit.op("Gather", matrices, emit.constant(each), axis=0) for each in range(experts)]
        made = [emit.op("Gemm", *each, transB=1) for each in zip(parts, chosen, strict=True)]
        return emit.op("Concat", *made, axis=0)

    first = emit.weight("mlp.experts.input", experts, 2 * shape.inner, shape.width, scale=wide)
    both = by_expert(emit.op("GatherND", tokens, token), first)
    gate, up = emit.ops("Split", 2, both, emit.constant([shape.inner] * 2), axis=1)
    active = emit.op("Mul", emit.op("Mul", gate, emit.op("Sigmoid", gate)), up)
    last = emit.weight("mlp.experts.output", experts, shape.width, shape.inner, scale=inner)
    made = emit.op("Mul", by_expert(active, last), emit.unsqueeze(factors, 1))
    total = emit.op("Expand", zero, emit.op("Shape", tokens))
    return emit.op("ScatterND", total, token, made, reduction="add")


def _expert(emit: Emitter, shape: DecoderShape, expert: int, rows: str) -> str:
    """What an expert makes of its rows, as a Llama's inner part does."""
    wide, inner = 1 / math.sqrt(shape.width), 1 / math.sqrt(shape.inner * 2 * shape.layers)
    name = f"mlp.experts.{expert}"
    gate = emit.op("MatMul", rows, emit.weight(f"{name}.gate", shape.width, shape.inner, scale=wide))
    up = emit.op("MatMul", rows, emit.weight(f"{name}.up", shape.width, shape.inner, scale=wide))
    active = emit.op("Mul", emit.op("Mul", gate, emit.op("Sigmoid", gate)), up)
    return emit.op("MatMul", active, emit.weight(f"{name}.down", shape.inner, shape.width, scale=inner))
