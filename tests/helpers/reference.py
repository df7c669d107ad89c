"""What graphs compute, in float64 numpy: slow, plain code to check kernels against."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import Graph, Node

_erf = np.vectorize(math.erf, otypes=[np.float64])


def evaluate(
    subgraph: Subgraph, inputs: Sequence[np.ndarray], instead: Mapping[int, np.ndarray] | None = None
) -> list[np.ndarray]:
    """The subgraph's outputs as float64 arrays. ``instead`` are other values of constants."""
    graph = subgraph.model.graph
    values: dict[int, np.ndarray] = {v: np.asarray(a, np.float64) for v, a in graph.constants.items()}
    values.update({v: np.asarray(a, np.float64) for v, a in (instead or {}).items()})
    values.update({v: np.asarray(a, np.float64) for v, a in zip(subgraph.inputs, inputs, strict=True)})
    for node in subgraph.operators:
        arrays = [values[v] for v in node.inputs]
        result = np.asarray(_OPS[node.op](graph, node, *arrays))
        shape = graph.type_of(node.outputs[0]).shape
        assert result.shape == shape, (node.op, result.shape, shape)
        values[node.outputs[0]] = result
    return [values[v] for v in subgraph.outputs]


def _pads(attrs: Mapping[str, Any], rank: int) -> tuple[Sequence[int], Sequence[int]]:
    padding = list(attrs["padding"])
    padding = padding if len(padding) == 2 * rank else padding * (2 * rank // len(padding))
    return padding[:rank], padding[rank:]


def _window(offset: Sequence[int], dilation: Sequence[int], strides: Sequence[int], out: Sequence[int]) -> Any:
    return tuple(
        slice(o * d, o * d + (n - 1) * s + 1, s) for o, d, s, n in zip(offset, dilation, strides, out, strict=True)
    )


def _conv(graph: Graph, node: Node, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    attrs: Any = node.attrs
    out = graph.type_of(node.outputs[0]).shape
    groups, rank = attrs["groups"], x.ndim - 2
    begin, end = _pads(attrs, rank)
    x = np.pad(x, [(0, 0), (0, 0), *zip(begin, end, strict=True)])
    x = x.reshape(x.shape[0], groups, -1, *x.shape[2:])
    w = w.reshape(groups, -1, *w.shape[1:])
    y = np.zeros((out[0], groups, out[1] // groups, *out[2:]))
    for offset in itertools.product(*(range(k) for k in w.shape[3:])):
        window = _window(offset, attrs["dilation"], attrs["strides"], out[2:])
        y += np.einsum("ngi...,goi->ngo...", x[(..., *window)], w[(..., *offset)])
    return y.reshape(out)


def _conv_transpose(graph: Graph, node: Node, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    attrs: Any = node.attrs
    out = graph.type_of(node.outputs[0]).shape
    groups, rank = attrs["groups"], x.ndim - 2
    begin, end = _pads(attrs, rank)
    x = x.reshape(x.shape[0], groups, -1, *x.shape[2:])
    w = w.reshape(groups, -1, *w.shape[1:])
    full = [n + b + e for n, b, e in zip(out[2:], begin, end, strict=True)]
    y = np.zeros((out[0], groups, out[1] // groups, *full))
    for offset in itertools.product(*(range(k) for k in w.shape[3:])):
        window = _window(offset, attrs["dilation"], attrs["strides"], x.shape[3:])
        y[(..., *window)] += np.einsum("ngi...,gio->ngo...", x, w[(..., *offset)])
    y = y[(..., *(slice(b, b + n) for b, n in zip(begin, out[2:], strict=True)))]
    return y.reshape(out)


def _pool(graph: Graph, node: Node, x: np.ndarray) -> np.ndarray:
    attrs: Any = node.attrs
    out, rank, average = graph.type_of(node.outputs[0]).shape, x.ndim - 2, "avg" in node.op
    begin, end = _pads(attrs, rank)
    reach = [(k - 1) * d + 1 for k, d in zip(attrs["pool_size"], attrs["dilation"], strict=True)]
    over = [
        max(0, (o - 1) * s + r - n - b - e)
        for o, s, r, n, b, e in zip(out[2:], attrs["strides"], reach, x.shape[2:], begin, end, strict=True)
    ]
    widths = [(0, 0), (0, 0), *((b, e + o) for b, e, o in zip(begin, end, over, strict=True))]
    padded = np.pad(x, widths, constant_values=0 if average else -np.inf)
    counted = np.pad(np.ones_like(x), widths, constant_values=int(bool(attrs["count_include_pad"])))
    offsets = list(itertools.product(*(range(k) for k in attrs["pool_size"])))
    windows = [_window(each, attrs["dilation"], attrs["strides"], out[2:]) for each in offsets]
    if not average:
        return np.max([padded[(..., *each)] for each in windows], axis=0)
    return sum(padded[(..., *each)] for each in windows) / sum(counted[(..., *each)] for each in windows)


def _layer_norm(graph: Graph, node: Node, x: np.ndarray, scale: np.ndarray, shift: np.ndarray) -> np.ndarray:
    axes: Any = node.attrs["axes"]
    centred = x - x.mean(axes, keepdims=True)
    variance = (centred**2).mean(axes, keepdims=True)
    return centred / np.sqrt(variance + node.attrs["epsilon"]) * scale + shift


def _batch_norm(graph: Graph, node: Node, x: np.ndarray, *of_channels: np.ndarray) -> np.ndarray:
    scale, shift, mean, variance = (each.reshape(-1, *[1] * (x.ndim - 2)) for each in of_channels)
    epsilon: Any = node.attrs["epsilon"]
    return (x - mean) / np.sqrt(variance + epsilon) * scale + shift


def _reduce(function: Callable[..., np.ndarray]) -> Callable[..., Any]:
    return lambda graph, node, x: function(x, node.attrs["axis"], keepdims=node.attrs["keepdims"])


def _softmax(graph: Graph, node: Node, x: np.ndarray) -> np.ndarray:
    axis: Any = node.attrs["axis"]
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def _reshape(graph: Graph, node: Node, x: np.ndarray) -> np.ndarray:
    return x.reshape(graph.type_of(node.outputs[0]).shape)


def _dequantize(graph: Graph, node: Node, q: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
    shape, axis = [1] * q.ndim, node.attrs["axis"]
    if scale.size > 1:
        assert isinstance(axis, int)
        shape[axis] = -1
    return np.asarray((q - zero.reshape(shape)) * scale.reshape(shape))


def _of(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda graph, node, *arrays: function(*arrays)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


_OPS: Mapping[str, Callable[..., Any]] = {
    **{f"nn.conv{n}d": _conv for n in (1, 2, 3)},
    **{f"nn.conv{n}d_transpose": _conv_transpose for n in (1, 2, 3)},
    **dict.fromkeys(("reshape", "squeeze", "expand_dims", "flatten"), _reshape),
    **{f"nn.{kind}_pool{n}d": _pool for kind in ("max", "avg") for n in (1, 2, 3)},
    "mean": _reduce(np.mean),
    "max": _reduce(np.max),
    "nn.layer_norm": _layer_norm,
    "nn.batch_norm": _batch_norm,
    "nn.log_softmax": lambda graph, node, x: np.log(_softmax(graph, node, x)),
    "matmul": _of(np.matmul),
    "nn.softmax": _softmax,
    "add": _of(np.add),
    "subtract": _of(np.subtract),
    "multiply": _of(np.multiply),
    "divide": _of(np.divide),
    "maximum": _of(np.maximum),
    "minimum": _of(np.minimum),
    "power": _of(np.power),
    "nn.relu": _of(lambda x: np.maximum(x, 0)),
    "nn.leakyrelu": lambda graph, node, x: np.where(x > 0, x, x * node.attrs["alpha"]),
    "nn.gelu": _of(lambda x: x * 0.5 * (1 + _erf(x / math.sqrt(2)))),
    "nn.gelu_tanh": _of(lambda x: x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
    "nn.silu": _of(lambda x: x * _sigmoid(x)),
    "clip": lambda graph, node, x: np.clip(x, node.attrs["arg1"], node.attrs["arg2"]),
    "erf": _of(_erf),
    "tanh": _of(np.tanh),
    "sigmoid": _of(_sigmoid),
    "exp": _of(np.exp),
    "log": _of(np.log),
    "sqrt": _of(np.sqrt),
    "abs": _of(np.abs),
    "square": _of(np.square),
    "negative": _of(np.negative),
    "round": _of(np.round),
    "nn.softplus": _of(lambda x: np.logaddexp(0, x)),
    "permute_dims": lambda graph, node, x: np.transpose(x, node.attrs["axes"]),
    "dequantize": _dequantize,
    "concat": lambda graph, node, *x: np.concatenate(x, node.attrs["axis"]),
}
