"""Convolutions for cuDNN, without a GPU: a numpy model computes what is described, as the library documents it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from collage.backends.cudnn import Cudnn
from collage.backends.cudnn_kernels.artifact import CudnnArtifact, pack, unpack
from collage.backends.cudnn_kernels.description import Convolution
from collage.backends.cudnn_kernels.task import task_of
from collage.frontend.model import Model, import_model
from collage.frontend.subgraph import Subgraph
from collage.graph.storage import Storage
from collage.kernel.options import BuildOptions
from collage.patterns.context import MatchContext
from collage.patterns.match import find_matches
from tests.frontend.test_to_onnx import Net
from tests.reference import evaluate

Floats = npt.NDArray[Any]


def windows(d: Convolution, padded: Floats, tap: Sequence[int], sizes: Sequence[int]) -> Floats:
    """What one tap of the filter reads of the padded data, for each element of the result."""
    cuts = [
        slice(t * dilation, t * dilation + (size - 1) * stride + 1, stride)
        for t, dilation, size, stride in zip(tap, d.dilations, sizes, d.strides, strict=True)
    ]
    return padded[(slice(None), slice(None), *cuts)]


def cudnn(
    d: Convolution, source: Floats, weights: Floats, residual: Floats | None, bias: Floats | None
) -> Floats:
    """What cuDNN writes for a description, in float64."""
    data, made = d.ends
    room = [(0, 0), (0, 0), *((pad, pad) for pad in d.pads)]
    grouped = weights.reshape(d.groups, made[1] // d.groups, *d.filter[1:])
    taps = list(itertools.product(*map(range, d.filter[2:])))
    shape = made[0], d.groups, -1, *made[2:]
    if d.transposed:
        padded = np.zeros([n + a + b for n, (a, b) in zip(data, room, strict=True)])
        for tap in taps:
            spread = np.einsum("ngo...,goi->ngi...", source.reshape(shape), grouped[(..., *tap)])
            windows(d, padded, tap, made[2:])[...] += spread.reshape(data[0], data[1], *made[2:])
        found = padded[tuple(slice(a, a + n) for n, (a, _) in zip(data, room, strict=True))]
    else:
        padded = np.pad(source, room)
        sums = np.zeros((made[0], d.groups, made[1] // d.groups, *made[2:]))
        for tap in taps:
            read = windows(d, padded, tap, made[2:]).reshape(shape)
            sums += np.einsum("ngi...,goi->ngo...", read, grouped[(..., *tap)])
        found = sums.reshape(made)
    if d.residual:
        assert residual is not None
        found = found + residual
    if d.bias:
        assert bias is not None
        found = found + bias.reshape(1, -1, *(1 for _ in d.pads))
    return np.maximum(found, 0) if d.relu else found


def conv(net: Net, source: Sequence[int], weights: Sequence[int], after: str = "", **attrs: Any) -> str:
    op = "ConvTranspose" if attrs.pop("transposed", False) else "Conv"
    groups = attrs.get("group", 1)
    channels = weights[1] * groups if op == "ConvTranspose" else weights[0]
    value = net.op(op, net.input(*source), net.random(*weights), net.random(channels), **attrs)
    if "residual" in after:
        value = net.op("Add", value, net.input(*_shape(net, value)))
    return net.op("Relu", value) if "relu" in after else value


def _shape(net: Net, value: str) -> Sequence[int]:
    model = import_model(net.build(value))
    return model.graph.type_of(model.graph.outputs[0]).shape


CASES: dict[str, Callable[[Net], str]] = {
    "3x3": lambda net: conv(net, (2, 4, 7, 6), (5, 4, 3, 3), pads=[1, 1, 1, 1]),
    "relu": lambda net: conv(net, (1, 4, 7, 6), (5, 4, 3, 3), "relu", pads=[1, 1, 1, 1]),
    "residual": lambda net: conv(net, (1, 4, 7, 6), (5, 4, 3, 3), "residual relu", pads=[1, 1, 1, 1]),
    "strides": lambda net: conv(net, (1, 3, 9, 9), (4, 3, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1]),
    "odd sizes": lambda net: conv(net, (1, 3, 8, 8), (4, 3, 3, 3), "relu", strides=[2, 2], pads=[1, 1, 0, 0]),
    "dilation": lambda net: conv(net, (1, 3, 9, 9), (4, 3, 3, 3), dilations=[2, 2]),
    "groups": lambda net: conv(net, (1, 6, 5, 5), (8, 3, 3, 3), "relu", group=2),
    "depthwise": lambda net: conv(net, (1, 6, 5, 5), (6, 1, 3, 3), group=6, pads=[1, 1, 1, 1]),
    "1x1": lambda net: conv(net, (2, 6, 5, 5), (7, 6, 1, 1), "relu"),
    "3d": lambda net: conv(net, (1, 3, 4, 5, 6), (4, 3, 2, 3, 3), "relu", pads=[0, 1, 1, 0, 1, 1]),
    "transposed": lambda net: conv(
        net, (2, 4, 3, 3), (4, 5, 4, 4), "relu", transposed=True, strides=[2, 2], pads=[1, 1, 1, 1]
    ),
    "transposed groups": lambda net: conv(
        net, (1, 4, 3, 3), (4, 3, 3, 3), transposed=True, group=2, strides=[2, 2], output_padding=[1, 1]
    ),
    "transposed from a pixel": lambda net: conv(net, (1, 6, 1, 1), (6, 5, 4, 4), transposed=True),
}


def matched(model: Model) -> Subgraph:
    matches, _ = find_matches(MatchContext(model), "cudnn", Cudnn().sources(BuildOptions()))
    return Subgraph(model, max((each.nodes for each in matches), key=len))


@pytest.mark.parametrize("name", CASES)
def test_matches(name: str) -> None:
    """The largest match computes what its operators compute, in the numpy model of cuDNN."""
    net = Net(18)
    model = import_model(net.build(CASES[name](net)))
    subgraph = matched(model)
    assert set(subgraph.outputs) == set(model.graph.outputs)
    task = task_of(subgraph)
    assert not task.description.problem()
    assert task.description.relu == (subgraph.ops[-1] == "relu")
    rng = np.random.default_rng(5)
    inputs = [rng.normal(size=each.shape) for each in subgraph.input_types]
    residual = None if task.residual is None else inputs[task.residual]
    bias = None if task.bias is None else np.float64(task.bias)
    made = cudnn(task.description, inputs[task.data], np.float64(task.weights), residual, bias)
    (expected,) = evaluate(subgraph, inputs)
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda net: conv(net, (1, 3, 8, 8), (4, 3, 3, 3), strides=[2, 2], pads=[0, 0, 1, 1]),
            "do not make",
        ),
        (lambda net: net.op("Conv", net.input(1, 3, 8), net.random(4, 3, 3)), "cuDNN gets no nn.conv1d"),
        (lambda net: net.op("Relu", net.input(1, 3, 8, 8)), "cuDNN gets no nn.relu"),
    ],
)
def test_what_it_does_not_take(make: Callable[[Net], str], words: str) -> None:
    net = Net(18)
    model = import_model(net.build(make(net)))
    matches, rejected = find_matches(MatchContext(model), "cudnn", Cudnn().sources(BuildOptions()))
    assert not matches
    assert any(words in each.reason for each in rejected)


def test_variants_and_artifacts() -> None:
    net = Net(18)
    model = import_model(net.build(CASES["residual"](net)))
    subgraph = matched(model)
    variants = Cudnn().variants(subgraph, BuildOptions())
    assert [each.split for each in variants] == [f"algorithm {n}" for n in (1, 2, 3, 4)]
    assert {(each.inputs, each.outputs) for each in variants} == {
        ((Storage("cuda"),) * 2, (Storage("cuda"),))
    }
    task = task_of(subgraph)
    places = len(subgraph.inputs), task.data, task.residual
    artifact = CudnnArtifact("sm_90", task.description, 1, 4096, *places, task.weights, task.bias)
    packed = pack(artifact)
    found = unpack(packed)
    assert pack(found) == packed
    assert found.description == task.description
    for old, new, words in (
        (b'"groups":1', b'"groups":2', "channels"),
        (b'"data":0', b'"data":7', "operands"),
        (b'"relu":true', b'"relu":null', "relu"),
        (b'"residual":1', b'"residual":9', "operands"),
    ):
        assert old in packed
        with pytest.raises((ValueError, TypeError), match=words):
            unpack(packed.replace(old, new, 1))
    assert replace(task.description, pads=(0, 1)).problem()
