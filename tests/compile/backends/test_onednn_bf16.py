"""oneDNN's kernels that store and multiply bfloat16, against a float64 model of the rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from collage.backends.layout import LayoutTransforms
from collage.backends.onednn_kernels.artifact import from_artifact, to_bytes
from collage.backends.onednn_kernels.reorder import reorder_kernel
from collage.graph.dataflow import TensorType
from collage.graph.storage import (
    BF16,
    BF16_STORAGES,
    BLOCKED_BF16,
    CHANNELS_LAST_BF16,
    PLAIN,
    PLAIN_BF16,
    STORAGES,
    Storage,
    from_layout,
    is_narrow,
    stored_type,
    to_layout,
    widened,
)
from collage.kernel.buffers import aligned_array, aligned_copy, poison
from collage.kernel.options import BuildOptions
from collage.kernel.transform import LayoutTransform
from collage.measure.worker.plan_check import same_values
from tests.helpers.backends.bf16_checks import (
    ALLOWED,
    check_all,
    check_special_values,
    convolution,
    reduced_variants,
)
from tests.helpers.backends.onednn_checks import BACKEND, chains_of, needs_onednn, subgraph_of
from tests.helpers.backends.product_models import EPILOGUES, product_model
from tests.helpers.models import make_model

pytestmark = [
    needs_onednn,
    pytest.mark.skipif(
        not reduced_variants(BACKEND, subgraph_of(product_model([8, 8], 8)), 1) if BACKEND.available() else True,
        reason="this processor has no arithmetic of bfloat16",
    ),
]
RNG = np.random.default_rng(0)


CONVOLUTIONS = {
    "3x3": convolution((1, 32, 9, 9), (48, 32, 3, 3), "Relu"),
    "1x1": convolution((1, 64, 8, 8), (32, 64, 1, 1), "Add", "Relu"),
    "strides": convolution((1, 32, 9, 9), (32, 32, 3, 3), strides=[2, 2]),
    "first": convolution((1, 3, 16, 16), (32, 3, 7, 7), "Relu"),
    "groups": convolution((1, 64, 8, 8), (64, 16, 3, 3), "Relu", group=4),
    "depthwise": convolution((1, 32, 8, 8), (32, 1, 3, 3), "Relu", group=32),
    "3d": convolution((1, 16, 4, 6, 6), (32, 16, 3, 3, 3), "Add", "Relu"),
    "odd channels": convolution((1, 20, 7, 7), (21, 20, 3, 3), "Relu"),
    "batch": convolution((3, 32, 6, 6), (32, 32, 3, 3), "Sigmoid"),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str, threads: int) -> None:
    built = check_all(BACKEND, subgraph_of(CONVOLUTIONS[name]), threads)
    stored = {each.inputs[0] for each in built}
    assert stored <= {*BF16_STORAGES}
    assert stored & {BLOCKED_BF16, CHANNELS_LAST_BF16} or name == "first"
    assert any(each.outputs[0] in STORAGES for each in built)
    assert any(each.outputs[0] in BF16_STORAGES for each in built)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("then", EPILOGUES)
def test_products(then: tuple[str, ...], threads: int) -> None:
    built = check_all(BACKEND, subgraph_of(product_model([2, 20, 64], 96, then=then)), threads)
    assert {each.outputs[0] for each in built} == {PLAIN, PLAIN_BF16}


@pytest.mark.parametrize("threads", [1, 2])
def test_attention(threads: int) -> None:
    """Products of two computed matrices, with the transposes around them, and the softmax between."""
    heads = {"perm": [0, 2, 1, 3]}
    nodes = [
        helper.make_node("Transpose", ["q"], ["a"], **heads),
        helper.make_node("Transpose", ["k"], ["b"], perm=[0, 2, 3, 1]),
        helper.make_node("Transpose", ["v"], ["c"], **heads),
        helper.make_node("MatMul", ["a", "b"], ["s"]),
        helper.make_node("Softmax", ["s"], ["w"]),
        helper.make_node("MatMul", ["w", "c"], ["o"]),
        helper.make_node("Transpose", ["o"], ["y"], **heads),
    ]
    inputs = {name: [1, 16, 2, 32] for name in "qkv"}
    for chain in chains_of(make_model(nodes, inputs, {"y": [1, 16, 2, 32]})):
        softmax = "softmax" in chain.ops
        built = check_all(BACKEND, chain, threads, roundings=2 if softmax else 1)  # oneDNN rounds exponentials, too
        if softmax:
            ends = {(each.inputs[0], each.outputs[0]) for each in built}
            assert (PLAIN, PLAIN_BF16) in ends
            assert (PLAIN_BF16, PLAIN_BF16) in ends


def one(op: str, result: list[int], *names: str, **attrs: Any) -> onnx.ModelProto:
    """An operator on pictures of these names."""
    node = helper.make_node(op, list(names), ["y"], **attrs)
    return make_model([node], dict.fromkeys(names, PICTURE), {"y": result})


PICTURE = [1, 32, 8, 8]
WINDOWS = {"kernel_shape": [2, 2], "strides": [2, 2]}
NORM = {"s": RNG.uniform(0.5, 2, 64).astype(np.float32), "b": RNG.standard_normal(64).astype(np.float32)}
OTHERS = {
    "max pool": one("MaxPool", [1, 32, 4, 4], "x", **WINDOWS),
    "average pool": one("AveragePool", [1, 32, 4, 4], "x", **WINDOWS),
    "mean": one("GlobalAveragePool", [1, 32, 1, 1], "x"),
    "add": one("Add", PICTURE, "x", "z"),
    "sigmoid": one("Sigmoid", PICTURE, "x"),
    "concat": one("Concat", [1, 64, 8, 8], "x", "z", axis=1),
    "layer norm": make_model(
        [helper.make_node("LayerNormalization", ["x", "s", "b"], ["y"], axis=-1)],
        {"x": [4, 9, 64]},
        {"y": [4, 9, 64]},
        NORM,
    ),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", OTHERS)
def test_other_operators(name: str, threads: int) -> None:
    built = check_all(BACKEND, subgraph_of(OTHERS[name]), threads)
    assert any({*each.inputs, *each.outputs} <= {*BF16_STORAGES} for each in built)


@pytest.mark.parametrize(
    "proto",
    [
        convolution((1, 32, 9, 9), (32, 32, 3, 3)),
        convolution((1, 32, 9, 9), (32, 32, 1, 1)),
        product_model([40, 6], 32, bias=False),
    ],
)
def test_special_values(proto: onnx.ModelProto) -> None:
    check_special_values(BACKEND, subgraph_of(proto), least=2)


def test_artifacts_of_float32_hold_no_dtypes() -> None:
    chain = subgraph_of(CONVOLUTIONS["3x3"])
    for variant in BACKEND.variants(chain, BuildOptions(threads=2, precisions=ALLOWED)):
        data = BACKEND.codegen(chain, BuildOptions(threads=2, variant=variant))
        assert to_bytes(from_artifact(data)) == data
        assert (b'"bf16"' in data) == (variant.precision == BF16)


PAIRS = [
    (one, other)
    for one in (*STORAGES, *BF16_STORAGES)
    for other in (*STORAGES, *BF16_STORAGES)
    if one != other and {one, other} & {*BF16_STORAGES}
]


@pytest.mark.parametrize(("source", "target"), PAIRS)
@pytest.mark.parametrize("threads", [1, 2])
def test_layout_transforms(source: Storage, target: Storage, threads: int) -> None:
    kind = TensorType((2, 20, 5, 3), "float32")
    plain = RNG.standard_normal(kind.shape).astype(np.float32)
    plain.reshape(-1)[:6] = [np.nan, np.inf, -np.inf, 1e-40, 257, 3.4e38]
    maker, options = LayoutTransforms(), BuildOptions(threads=threads)
    transform = LayoutTransform(kind, source, target)
    same = widened(source) == widened(target)
    assert maker.transforms(transform) == (same or PLAIN in (source, target) or is_narrow(source) == is_narrow(target))
    kernel = reorder_kernel(kind, source, target, threads)
    if maker.transforms(transform):
        kernel = maker.load_transform(maker.codegen_transform(transform, options), options)  # type: ignore[assignment]
    given = aligned_array(stored_type(kind, target))
    poison(given)
    with np.errstate(all="ignore"):
        taken = aligned_copy(to_layout(plain, source))
        expected = to_layout(from_layout(taken, source, kind), target)
    kernel.bind([taken], [given])()
    if given.dtype == np.float32:
        np.testing.assert_array_equal(np.nan_to_num(given, nan=7), np.nan_to_num(expected, nan=7), strict=True)
    else:
        assert same_values(given, expected)
