"""The small models that a backend is tried on: operators with their attributes, shapes, dtypes, and chains of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from collage.graph.dataflow import Array
from collage.testing.onnx_cases import (
    BINARY,
    CASES,
    REDUCTIONS,
    UNARY,
    Case,
    Feed,
    as_model,
    case,
    f32,
    i64,
    normal,
    scalar,
)


@dataclass(frozen=True)
class TrialModel:
    """A model, and its name for people."""

    name: str
    model: onnx.ModelProto


_SHAPES = ((), (1,), (37,), (1, 1, 1, 1), (2, 16, 9, 11), (131, 523))
"""A scalar, a single number, lengths that no vector divides, four axes, and what does not fit into the first cache."""
_ROWS = Feed((131, 37), low=0.1)
"""More rows than kernels that take 64, 100 or 128 at once have in one step."""
_ALIKE = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow")
_DTYPES = ("float16", "float64", "int8", "uint8", "int32", "int64")
_TO_NEGATE = ("Abs", "Neg", "Sign", "Relu")
_POSITIVE = np.abs(normal(37)) + f32(0.5)
_IMAGE = Feed((1, 8, 13, 10))


def catalogue() -> Iterator[TrialModel]:
    """All models, the simplest first. Weights are the same in each process."""
    seen: set[str] = set()
    for each in (*_usual(), *_shaped(), *_typed(), *_along(), *_constant(), *_products(), *_windows()):
        name = _named(each)
        if name not in seen:
            seen.add(name)
            yield TrialModel(name, as_model(each))
    yield from _chains()


def _named(each: Case) -> str:
    given = ("none" if one is None else _kind(one) for one in each.inputs)
    attrs = "".join(f" {name}={_plain(value)}" for name, value in each.attrs.items())
    return f"{each.op}({', '.join(given)}){attrs} opset {each.opset}"


def _kind(given: Feed | Array) -> str:
    text = f"{given.dtype}[{'x'.join(map(str, given.shape))}]"
    return text if isinstance(given, Feed) else f"constant {text}"


def _plain(value: Any) -> str:
    return str(value).replace(" ", "")


def _usual() -> Iterator[Case]:
    yield from (each for each in CASES if each.op != "MeanVarianceNormalization")  # ONNX infers no shape for it


def _shaped() -> Iterator[Case]:
    """Elementwise operators on other shapes, and pairs of shapes that broadcast."""
    for each in UNARY:
        if each.op in ("Softmax", "LogSoftmax", "Hardmax"):
            for extents, axis in (((1, 1), 1), ((37,), 0), ((131, 257), 1), ((2, 3, 5, 7), 1), ((4, 1031), -1)):
                yield replace(each, inputs=(Feed(extents),), attrs={"axis": axis}, opset=18)
        elif all(given is None or not isinstance(given, Feed) or given.shape == (2, 3, 4) for given in each.inputs):
            if any(isinstance(given, np.ndarray) and given.size > 1 for given in each.inputs):
                continue
            for shape in _SHAPES:
                feeds = (replace(given, shape=shape) if isinstance(given, Feed) else given for given in each.inputs)
                yield replace(each, inputs=tuple(feeds))
    pairs = (
        *(((37,), (37,)), ((1,), (1,)), ((), ()), ((2, 16, 9, 11), (2, 16, 9, 11)), ((131, 523), (131, 523))),
        *(((2, 16, 9, 11), (16, 1, 1)), ((2, 16, 9, 11), (1,)), ((5, 37), ()), ((1, 37), (5, 1)), ((37,), (131, 37))),
    )
    for op in _ALIKE:
        for one, other in pairs:
            yield case(op, Feed(one, low=0.1), Feed(other, low=0.1))


def _typed() -> Iterator[Case]:
    for dtype in _DTYPES:
        x, y = Feed((3, 37), dtype, 0, 90), Feed((37,), dtype, 1, 9)
        yield from (case(op, x, y) for op in _ALIKE if op != "Pow")
        yield from (case(op, x, scalar(3, dtype)) for op in _ALIKE if op != "Pow")
        yield from (case(op, x) for op in _TO_NEGATE if dtype != "uint8" or op not in ("Neg", "Relu"))
        yield case("Concat", x, x, axis=0)
        yield case("Transpose", x)
        yield case("ReduceMax", x, i64(1), keepdims=0)
        if not dtype.endswith("int8"):
            yield case("ReduceSum", x, i64(0), keepdims=1)
            yield case("MatMul", x, Feed((37, 5), dtype, 0, 9))
        yield case("Where", Feed((3, 37), "bool"), x, y)
    for dtype in ("float16", "float64"):
        yield from (case(op, Feed((3, 37), dtype)) for op in "Exp Sigmoid Tanh Softplus Elu".split())
        yield case("Softmax", Feed((131, 37), dtype), axis=-1)
        yield case("Gemm", Feed((3, 8), dtype), np.asarray(normal(8, 5), dtype))


def _along() -> Iterator[Case]:
    """Operators along one axis, of matrices and of longer arrays."""
    for shape in ((1, 1), (5, 37), (131, 257), (2, 3, 4, 5)):
        for axis in range(len(shape)):
            yield case("CumSum", Feed(shape), scalar(axis, np.int64))
            yield case("ReduceMean", Feed(shape), i64(axis), keepdims=1)
            yield case("ReduceMax", Feed(shape), i64(axis), keepdims=0)
            yield case("Concat", Feed(shape), Feed(shape), axis=axis)
    for each in REDUCTIONS:
        if all(isinstance(given, np.ndarray) and given.size == 1 for given in each.inputs[1:]):
            yield replace(each, inputs=(_ROWS, *each.inputs[1:]))
    yield case("LayerNormalization", _ROWS, normal(37), normal(37), axis=-1)
    yield case("LayerNormalization", Feed((2, 70, 37)), normal(37), axis=-1)
    yield case("RMSNormalization", _ROWS, normal(37), axis=-1, opset=23)
    yield case("LpNormalization", _ROWS, axis=-1)


def _constant() -> Iterator[Case]:
    """Binary operators with a constant on either side."""
    for op in _ALIKE:
        for constant in (scalar(1.5), f32(1.5), _POSITIVE, _POSITIVE[:5, None]):
            yield case(op, Feed((5, 37), low=0.1), constant)
            yield case(op, constant, Feed((5, 37), low=0.1))
    for each in BINARY:
        if each.op in ("Less", "Greater", "Equal"):
            yield replace(each, inputs=(each.inputs[0], scalar(0.5, _dtype(each.inputs[0]))))


def _dtype(given: Feed | Array | None) -> str:
    return given.dtype if isinstance(given, Feed) else "float32"


def _products() -> Iterator[Case]:
    for rows, depth, columns in ((1, 1, 1), (1, 64, 100), (17, 37, 5), (131, 128, 96), (3, 1031, 33)):
        yield case("MatMul", Feed((rows, depth)), normal(depth, columns))
        yield case("MatMul", Feed((rows, depth)), Feed((depth, columns)))
        yield case("MatMul", normal(rows, depth), Feed((depth, columns)))
        yield case("Gemm", Feed((rows, depth)), normal(columns, depth), normal(columns), transB=1)
    yield case("MatMul", Feed((2, 3, 17, 8)), Feed((2, 3, 8, 9)))
    yield case("MatMul", Feed((2, 3, 17, 8)), Feed((3, 8, 9)))
    yield case("MatMul", Feed((2, 17, 8)), normal(8, 16))


def _windows() -> Iterator[Case]:
    """Convolutions and pooling with one attribute changed at a time."""
    changes: tuple[dict[str, Any], ...] = (
        {},
        {"strides": [2, 2]},
        {"strides": [1, 3]},
        {"dilations": [2, 2]},
        {"dilations": [1, 3]},
        {"pads": [1, 1, 1, 1]},
        {"pads": [0, 2, 1, 0]},
        {"pads": [1, 1, 1, 1], "strides": [2, 2]},
    )
    for attrs in changes:
        yield case("Conv", _IMAGE, normal(16, 8, 3, 3), **attrs)
        yield case("Conv", _IMAGE, normal(16, 8, 3, 3), normal(16), **attrs)
        yield case("Conv", _IMAGE, normal(8, 1, 3, 3), group=8, **attrs)
        yield case("Conv", _IMAGE, normal(16, 4, 3, 3), group=2, **attrs)
        yield case("Conv", Feed((2, 3, 13, 10)), normal(5, 3, 3, 3), **attrs)
        yield case("ConvTranspose", _IMAGE, normal(8, 16, 3, 3), **attrs)
        if "dilations" not in attrs:
            yield case("MaxPool", _IMAGE, kernel_shape=[3, 3], **attrs)
            yield case("AveragePool", _IMAGE, kernel_shape=[3, 3], **attrs)
            yield case("AveragePool", _IMAGE, kernel_shape=[3, 3], count_include_pad=1, **attrs)
    yield case("Conv", Feed((1, 32, 14, 14)), normal(64, 32, 1, 1), normal(64))
    yield case("Conv", Feed((1, 3, 29, 31)), normal(32, 3, 7, 7), strides=[2, 2], pads=[3, 3, 3, 3])
    yield case("Conv", Feed((1, 8, 1, 1)), normal(8, 8, 1, 1))
    yield case("Conv", Feed((1, 4, 9, 9)), Feed((6, 4, 3, 3)))
    for taps, length in ((3, 37), (300, 1000), (513, 700)):
        of_signals: tuple[dict[str, Any], ...] = ({}, {"strides": [2]}, {"dilations": [2]}, {"pads": [7, 3]})
        for attrs in of_signals:
            if (taps - 1) * 2 < length:
                yield case("Conv", Feed((2, 4, length)), normal(4, 1, taps), group=4, **attrs)
    yield case("Conv", normal(1, 4, 400), Feed((4, 1, 300)), group=4)
    yield case("Conv", Feed((1, 4, 600)), normal(4, 4, 300))
    yield case("Conv", Feed((1, 4, 600)), normal(8, 1, 300), group=4)
    yield case("Conv", Feed((1, 4, 600)), normal(4, 1, 300), normal(4), group=4, pads=[1, 0])


_CHAINS: Sequence[tuple[str, dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]] = (
    ("a = Add(x, w) | y = Relu(a)", {"x": (5, 37)}, {"w": (37,)}),
    ("a = Mul(x, w) | b = Add(a, w) | y = Tanh(b)", {"x": (2, 8, 9, 9)}, {"w": (8, 1, 1)}),
    ("a = Sigmoid(x) | y = Mul(x, a)", {"x": (5, 37)}, {}),
    ("a = Add(x, z) | b = Relu(a) | y = Add(b, x)", {"x": (4, 64), "z": (4, 64)}, {}),
    ("a = Relu(x) | y = Exp(a)", {"x": (3, 100)}, {}),
    ("a = Relu(x) | b = Tanh(a) | y = Add(a, b)", {"x": (3, 100)}, {}),
    ("a = MatMul(x, w) | y = Add(a, b)", {"x": (17, 32)}, {"w": (32, 48), "b": (48,)}),
    ("a = MatMul(x, w) | c = Add(a, b) | y = Relu(c)", {"x": (17, 32)}, {"w": (32, 48), "b": (48,)}),
    ("a = MatMul(x, w) | c = Add(a, b) | y = Gelu(c)", {"x": (1, 7, 32)}, {"w": (32, 48), "b": (48,)}),
    ("a = MatMul(x, w) | y = Add(a, z)", {"x": (17, 32), "z": (17, 48)}, {"w": (32, 48)}),
    ("a = MatMul(x, w) | y = Softmax(a)", {"x": (17, 32)}, {"w": (32, 48)}),
    ("a = Conv(x, w, b) | y = Relu(a)", {"x": (1, 8, 12, 12)}, {"w": (16, 8, 3, 3), "b": (16,)}),
    ("a = Conv(x, w) | c = Add(a, z) | y = Relu(c)", {"x": (1, 8, 9, 9), "z": (1, 16, 7, 7)}, {"w": (16, 8, 3, 3)}),
    ("a = Conv(x, w, b) | s = Sigmoid(a) | y = Mul(a, s)", {"x": (1, 8, 9, 9)}, {"w": (16, 8, 1, 1), "b": (16,)}),
    ("a = Conv(x, w) | c = Relu(a) | y = Conv(c, v)", {"x": (1, 8, 9, 9)}, {"w": (16, 8, 3, 3), "v": (8, 16, 1, 1)}),
    ("a = Add(x, z) | y = LayerNormalization(a, s, b)", {"x": (2, 5, 32), "z": (2, 5, 32)}, {"s": (32,), "b": (32,)}),
    ("a = MatMul(q, k) | s = Softmax(a) | y = MatMul(s, v)", {"q": (2, 5, 8), "k": (2, 8, 5), "v": (2, 5, 8)}, {}),
)
"""Nodes from ``x`` and other inputs to ``y``, with the shapes of inputs and of random weights."""


def _chains() -> Iterator[TrialModel]:
    for text, inputs, weights in _CHAINS:
        nodes = []
        for part in text.split(" | "):
            output, _, call = part.partition(" = ")
            op, _, arguments = call.removesuffix(")").partition("(")
            nodes.append(helper.make_node(op, arguments.split(", "), [output]))
        graph = helper.make_graph(
            nodes,
            "chain",
            [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in inputs.items()],
            [onnx.ValueInfoProto(name="y")],
            [numpy_helper.from_array(normal(*shape), name) for name, shape in weights.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        yield TrialModel(text, onnx.shape_inference.infer_shapes(model, strict_mode=True))
