"""Small memory-bound subgraphs, each in three forms: in Relax, as ONNX nodes, and in numpy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import helper
from tvm import relax

Array = Any
op = relax.op


@dataclass(frozen=True)
class Case:
    """A kernel in three forms: Relax, ONNX nodes over x0, x1, ... -> y, and numpy on float64."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    build: Callable[..., Any]
    nodes: Callable[[], list[Any]]
    reference: Callable[..., Array]


def const(value: float) -> Any:
    return relax.const(value, "float32")


def gelu(emit: Callable[[Any], Any], x: Any) -> Any:
    e = emit(op.erf(emit(op.multiply(x, const(math.sqrt(0.5))))))
    return op.multiply(emit(op.multiply(x, emit(op.add(e, const(1.0))))), const(0.5))


def np_erf(x: Array) -> Array:
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def np_layer_norm(x: Array, g: Array, b: Array) -> Array:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * g + b


def np_softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def np_windows(x: Array, k: int, stride: int, pad: float) -> Array:
    x = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=pad)
    return np.lib.stride_tricks.sliding_window_view(x, (k, k), (2, 3))[:, :, ::stride, ::stride]


def np_batch_norm(x: Array, g: Array, b: Array, m: Array, v: Array) -> Array:
    g, b, m, v = (t.reshape(-1, 1, 1) for t in (g, b, m, v))
    return np.maximum((x - m) / np.sqrt(v + 1e-5) * g + b, 0)


def node(kind: str, inputs: str, output: str = "y", **attributes: Any) -> Any:
    return helper.make_node(kind, inputs.split(), [output], **attributes)


def batch_norm(emit: Callable[[Any], Any], x: Any, g: Any, b: Any, m: Any, v: Any) -> Any:
    return op.nn.relu(emit(relax.TupleGetItem(emit(op.nn.batch_norm(x, g, b, m, v, 1, training=False)), 0)))


def layer_norm_case(rows: int) -> Case:
    return Case(
        f"layer_norm {rows}x768",
        ((rows, 768), (768,), (768,)),
        lambda e, x, g, b: op.nn.layer_norm(x, g, b, axes=[-1]),
        lambda: [node("LayerNormalization", "x0 x1 x2", epsilon=1e-5)],
        np_layer_norm,
    )


def unary(
    name: str, shape: tuple[int, ...], build: Callable[[Any], Any], kind: str, reference: Any, **attrs: Any
) -> Case:
    return Case(name, (shape,), lambda e, x: build(x), lambda: [node(kind, "x0", **attrs)], reference)


BIG, HALF, STEM = (1, 256, 56, 56), (1, 64, 56, 56), (1, 64, 112, 112)
CHANNELS = ((64,),) * 4
CASES = (
    Case(
        "gelu (erf) 64x3072",
        ((64, 3072),),
        gelu,
        lambda: [
            node("Constant", "", "half", value_float=0.5),
            node("Constant", "", "one", value_float=1.0),
            node("Constant", "", "r", value_float=math.sqrt(0.5)),
            node("Mul", "x0 r", "a"),
            node("Erf", "a", "b"),
            node("Add", "b one", "c"),
            node("Mul", "x0 c", "d"),
            node("Mul", "d half"),
        ],
        lambda x: 0.5 * x * (1 + np_erf(x * math.sqrt(0.5))),
    ),
    layer_norm_case(64),
    layer_norm_case(512),
    unary("softmax 12x64x64", (12, 64, 64), op.nn.softmax, "Softmax", np_softmax, axis=-1),
    Case(
        "relu(x+b+y) 1x256x56x56",
        (BIG, (1, 256, 1, 1), BIG),
        lambda e, x, b, y: op.nn.relu(e(op.add(e(op.add(x, b)), y))),
        lambda: [node("Add", "x0 x1", "s"), node("Add", "s x2", "t"), node("Relu", "t")],
        lambda x, b, y: np.maximum(x + b + y, 0),
    ),
    Case(
        "add+relu 1x64x56x56",
        (HALF, HALF),
        lambda e, x, y: op.nn.relu(e(op.add(x, y))),
        lambda: [node("Add", "x0 x1", "s"), node("Relu", "s")],
        lambda x, y: np.maximum(x + y, 0),
    ),
    unary("tanh 1x3x64x64", (1, 3, 64, 64), op.tanh, "Tanh", np.tanh),
    unary("sigmoid 1x64x56x56", HALF, op.sigmoid, "Sigmoid", lambda x: 1 / (1 + np.exp(-x))),
    unary(
        "transpose 0213 1x64x12x64",
        (1, 64, 12, 64),
        lambda x: op.permute_dims(x, [0, 2, 1, 3]),
        "Transpose",
        lambda x: x.transpose(0, 2, 1, 3),
        perm=[0, 2, 1, 3],
    ),
    unary(
        "transpose 0231 1x64x56x56",
        HALF,
        lambda x: op.permute_dims(x, [0, 2, 3, 1]),
        "Transpose",
        lambda x: x.transpose(0, 2, 3, 1),
        perm=[0, 2, 3, 1],
    ),
    unary(
        "mean HW 1x2048x7x7",
        (1, 2048, 7, 7),
        lambda x: op.mean(x, [2, 3], keepdims=True),
        "GlobalAveragePool",
        lambda x: x.mean((2, 3), keepdims=True),
    ),
    unary(
        "max_pool 3x3 s2 1x64x112x112",
        STEM,
        lambda x: op.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1, 1, 1)),
        "MaxPool",
        lambda x: np_windows(x, 3, 2, -np.inf).max((-1, -2)),
        kernel_shape=[3, 3],
        strides=[2, 2],
        pads=[1] * 4,
    ),
    unary(
        "avg_pool 3x3 s1 1x64x56x56",
        HALF,
        lambda x: op.nn.avg_pool2d(x, (3, 3), (1, 1), (1, 1, 1, 1), count_include_pad=False),
        "AveragePool",
        lambda x: np_windows(x, 3, 1, 0).sum((-1, -2)) / np_windows(np.ones_like(x), 3, 1, 0).sum((-1, -2)),
        kernel_shape=[3, 3],
        strides=[1, 1],
        pads=[1] * 4,
    ),
    Case(
        "concat of 4 1x64x56x56",
        (HALF,) * 4,
        lambda e, *x: op.concat(list(x), 1),
        lambda: [node("Concat", "x0 x1 x2 x3", axis=1)],
        lambda *x: np.concatenate(x, 1),
    ),
    Case(
        "batch_norm+relu 1x64x112x112",
        (STEM, *CHANNELS),
        batch_norm,
        lambda: [node("BatchNormalization", "x0 x1 x2 x3 x4", "n", epsilon=1e-5), node("Relu", "n")],
        np_batch_norm,
    ),
    Case(
        "bias add 64x3072",
        ((64, 3072), (3072,)),
        lambda e, x, b: op.add(x, b),
        lambda: [node("Add", "x0 x1")],
        lambda x, b: x + b,
    ),
    Case(
        "depthwise 3x3 1x64x56x56",
        (HALF, (64, 1, 3, 3)),
        lambda e, x, w: op.nn.conv2d(x, w, padding=(1, 1), groups=64),
        lambda: [node("Conv", "x0 x1", group=64, pads=[1] * 4)],
        lambda x, w: np.einsum("nchwij,cij->nchw", np_windows(x, 3, 1, 0), w[:, 0]),
    ),
)
