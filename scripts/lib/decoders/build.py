"""Building decoders as ONNX: GPT-2 and Llama, each in the forms of ``shape.py``."""

from __future__ import annotations

import math
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from scripts.lib.decoders.attention import attention
from scripts.lib.decoders.emit import Emitter
from scripts.lib.decoders.experts import mixture
from scripts.lib.decoders.shape import ATTENTION, GPT2, PLAIN, DecoderShape

EPSILON = 1e-5
SHARPNESS = 3.0
"""The standard deviation of the logits, with which the best token stands out."""
TIED = 0.1
"""That of an embedding that is the last projection, too: with a larger one, a token predicts itself."""


def decoder(shape: DecoderShape, seed: int = 0, beside: Path | None = None) -> onnx.ModelProto:
    """The decoder with seeded random weights, which go to the file ``beside`` where it is given.

    Inputs are int64 ``input_ids`` [batch, sequence] and ``position_ids`` of the same shape, and with a cache
    ``attention_mask`` [batch, past + sequence] and ``past_key_values.N.key`` [batch, kv_heads, past, head] and
    ``.value`` [batch, kv_heads, past, value]. Outputs are ``logits`` [batch, sequence, vocabulary] and, with a cache,
    ``present.N.key`` and ``.value``.
    """
    emit = Emitter(seed, beside)
    cached = shape.form != PLAIN
    x = _embedding(emit, shape)
    for layer in range(shape.layers):
        emit.scope = f"model.layers.{layer}"
        mixed = attention(emit, shape, layer, _norm(emit, shape, "norm1", x))
        x = emit.op("Add", x, mixed)
        x = emit.op("Add", x, _feed_forward(emit, shape, _norm(emit, shape, "norm2", x)))
    emit.scope = "model"
    x = _norm(emit, shape, "norm", x)
    emit.nodes.append(helper.make_node("MatMul", [x, _head(emit, shape)], ["logits"], name="/lm_head/MatMul"))
    graph = helper.make_graph(emit.nodes, "decoder", _inputs(shape, cached), _outputs(shape, cached))
    graph.initializer.extend(emit.initialisers)
    opset = 23 if shape.form == ATTENTION else 17
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def _embedding(emit: Emitter, shape: DecoderShape) -> str:
    emit.scope = "model"
    tied = shape.family == GPT2
    scale = TIED if tied else 1.0
    x = emit.op("Gather", emit.weight("embed_tokens", shape.vocabulary, shape.width, scale=scale), "input_ids")
    if tied:
        places = emit.weight("embed_positions", shape.positions, shape.width, scale=scale)
        x = emit.op("Add", x, emit.op("Gather", places, "position_ids"))
    return x


def _head(emit: Emitter, shape: DecoderShape) -> str:
    """GPT-2's embedding is the last projection, too. A Llama has another one."""
    scale = SHARPNESS / math.sqrt(shape.width)
    if shape.family == GPT2:
        table = emit.op("Transpose", "model.embed_tokens", perm=[1, 0])
        return emit.op("Mul", table, emit.number(scale / TIED))
    return emit.weight("lm_head", shape.width, shape.vocabulary, scale=scale)


def _norm(emit: Emitter, shape: DecoderShape, name: str, x: str) -> str:
    weight = emit.weight(f"{name}.weight", shape.width, scale=0.1, mean=1.0)
    if shape.family == GPT2:
        bias = emit.weight(f"{name}.bias", shape.width, scale=0.1)
        return emit.op("LayerNormalization", x, weight, bias, axis=-1, epsilon=EPSILON)
    square = emit.op("Pow", x, emit.number(2.0))
    if shape.form == ATTENTION:
        mean = emit.op("ReduceMean", square, emit.constant([-1]))
    else:
        mean = emit.op("ReduceMean", square, axes=[-1])
    root = emit.op("Sqrt", emit.op("Add", mean, emit.number(EPSILON)))
    scaled = emit.op("Mul", x, emit.op("Div", emit.number(1.0), root))
    return emit.op("Mul", weight, scaled)


def _feed_forward(emit: Emitter, shape: DecoderShape, x: str) -> str:
    if shape.experts:
        return mixture(emit, shape, x)
    wide, inner = 1 / math.sqrt(shape.width), 1 / math.sqrt(shape.inner * 2 * shape.layers)
    if shape.family == GPT2:
        up = emit.op("MatMul", x, emit.weight("mlp.fc", shape.width, shape.inner, scale=wide))
        up = emit.op("Add", up, emit.weight("mlp.fc.bias", shape.inner, scale=0.1))
        down = emit.op("MatMul", _gelu(emit, up), emit.weight("mlp.proj", shape.inner, shape.width, scale=inner))
        return emit.op("Add", down, emit.weight("mlp.proj.bias", shape.width, scale=0.1))
    gate = emit.op("MatMul", x, emit.weight("mlp.gate", shape.width, shape.inner, scale=wide))
    up = emit.op("MatMul", x, emit.weight("mlp.up", shape.width, shape.inner, scale=wide))
    active = emit.op("Mul", emit.op("Mul", gate, emit.op("Sigmoid", gate)), up)
    return emit.op("MatMul", active, emit.weight("mlp.down", shape.inner, shape.width, scale=inner))


def _gelu(emit: Emitter, x: str) -> str:
    """The approximation with tanh, in the operators that exporters write."""
    cube = emit.op("Mul", emit.op("Pow", x, emit.number(3.0)), emit.number(0.044715))
    inside = emit.op("Mul", emit.op("Add", x, cube), emit.number(math.sqrt(2 / math.pi)))
    half = emit.op("Mul", x, emit.number(0.5))
    return emit.op("Mul", half, emit.op("Add", emit.op("Tanh", inside), emit.number(1.0)))


def _inputs(shape: DecoderShape, cached: bool) -> list[onnx.ValueInfoProto]:
    whole = TensorProto.INT64
    found = [helper.make_tensor_value_info("input_ids", whole, ["batch", "sequence"])]
    if cached:
        found.append(helper.make_tensor_value_info("attention_mask", whole, ["batch", "past + sequence"]))
    found.append(helper.make_tensor_value_info("position_ids", whole, ["batch", "sequence"]))
    return [*found, *(_cache(shape, "past_key_values", "past") if cached else [])]


def _outputs(shape: DecoderShape, cached: bool) -> list[onnx.ValueInfoProto]:
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "sequence", shape.vocabulary])
    return [logits, *(_cache(shape, "present", "past + sequence") if cached else [])]


def _cache(shape: DecoderShape, name: str, length: str) -> list[onnx.ValueInfoProto]:
    return [
        helper.make_tensor_value_info(
            f"{name}.{layer}.{kind}", TensorProto.FLOAT, ["batch", shape.kv_heads, length, size]
        )
        for layer in range(shape.layers)
        for kind, size in (("key", shape.head), ("value", shape.value))
    ]
