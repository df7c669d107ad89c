"""What a kernel of oneDNN is does not depend on what the process has made before, and only what can run is offered."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from collage.backends.chains.strided import Strided, dense, ordered
from collage.backends.onednn_kernels.description import Blocked, Description, Packed
from collage.backends.onednn_kernels.operations import Convolution, MatMul
from collage.backends.onednn_kernels.settle import lies_channels_last, settled
from collage.graph.storage import CHANNELS_LAST, PLAIN
from collage.kernel.options import BuildOptions
from tests.backends.onednn_checks import (
    BACKEND,
    chains_of,
    check_all_variants,
    needs_onednn,
    run_variant,
    subgraph_of,
    variants_of,
)
from tests.models import make_model

RNG = np.random.default_rng(0)


def point_conv(channels: int, out: int, batch: int = 1) -> onnx.ModelProto:
    """A pointwise convolution of one position."""
    weights = {"w": RNG.standard_normal((out, channels, 1, 1)).astype(np.float32)}
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    return make_model([node], {"x": [batch, channels, 1, 1]}, {"y": [batch, out, 1, 1]}, weights)


def squeezed(op: str) -> onnx.ModelProto:
    """A convolution or a pooling with functions and a squeeze behind it, as voice-activity detectors end."""
    first = {
        "points": helper.make_node("Conv", ["x", "w", "b"], ["c"]),
        "columns": helper.make_node("Conv", ["x", "w", "b"], ["c"]),
        "pool": helper.make_node("MaxPool", ["x"], ["c"], kernel_shape=[2], strides=[1]),
        "far pool": helper.make_node("MaxPool", ["x"], ["c"], kernel_shape=[8], strides=[1]),
    }[op]
    length, after = {"points": (1, 1), "columns": (8, 8), "pool": (8, 7), "far pool": (8, 1)}[op]
    channels = 24 if "pool" in op else 1
    weights = {
        "w": RNG.standard_normal((1, 24, 1)).astype(np.float32),
        "b": np.array([0.5], np.float32),
        "shape": np.array([channels * after]),
    }
    nodes = [
        first,
        helper.make_node("Sigmoid", ["c"], ["s"]),
        helper.make_node("Reshape", ["s", "shape"], ["y"]),
    ]
    return make_model(nodes, {"x": [1, 24, length]}, {"y": [channels * after]}, weights)


@needs_onednn
@pytest.mark.parametrize("batch", [1, 3])
def test_what_was_made_before_changes_no_kernel(batch: int) -> None:
    subgraph = subgraph_of(point_conv(144, 48, batch))
    inputs = [RNG.standard_normal((batch, 144, 1, 1)).astype(np.float32)]
    (plain,) = {v for v in variants_of(subgraph, 1) if v.outputs == (PLAIN,)}
    (last,) = {v for v in variants_of(subgraph, 1) if v.outputs == (CHANNELS_LAST,)}
    first = BACKEND.codegen(subgraph, BuildOptions(threads=1, variant=plain))
    run_variant(subgraph, last, 1, inputs)  # its primitive is in oneDNN's cache from now on
    assert BACKEND.codegen(subgraph, BuildOptions(threads=1, variant=plain)) == first
    (found,), _ = run_variant(subgraph, plain, 1, inputs)
    weights = next(iter(subgraph.weights.values()))
    np.testing.assert_allclose(found, np.einsum("nchw,ocuv->nohw", inputs[0], weights), rtol=1e-4, atol=1e-4)


@needs_onednn
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("op", ["points", "columns", "pool", "far pool"])
def test_a_reshaped_result_is_offered_in_the_plain_layout_only(op: str, threads: int) -> None:
    viewed = [each for each in chains_of(squeezed(op)) if "reshape" in each.ops]
    for subgraph in viewed:
        variants = variants_of(subgraph, threads)
        assert {v.outputs for v in variants} <= {(PLAIN,)}
        if variants:
            assert check_all_variants(subgraph, threads) == list(variants)
    # A plain convolution of several positions has no quick functions behind it, one of a single position has.
    assert any(variants_of(each, threads) for each in viewed if each.ops[0] != "sigmoid") == (op != "columns")


def conv(src: Description, dst: Description) -> Convolution:
    weights = Packed((dst.dims[1], src.dims[1], *[1] * (len(src.dims) - 2)))
    ones, zeros = (1,) * (len(src.dims) - 2), (0,) * (len(src.dims) - 2)
    return Convolution(src, weights, None, dst, ones, ones, zeros, zeros)


def test_tensors_that_lie_alike_are_described_alike() -> None:
    for batch in (1, 5):
        src, dst = (batch, 128, 1), (batch, 7, 1)
        forms = {
            settled(conv(Strided(src, (128, 1, a)), Strided(dst, (7, 1, b))))
            for a in (1, 128)
            for b in (1, 7)
        }
        assert forms == {conv(ordered(src, (0, 2, 1)), ordered(dst, (0, 2, 1)))}
    # One input channel: whichever it is described as, it is what the result is.
    grey, wide = (1, 1, 6, 6), (1, 32, 6, 6)
    for order in ((0, 1, 2, 3), (0, 2, 3, 1)):
        for other in ((0, 1, 2, 3), (0, 2, 3, 1)):
            found = settled(conv(ordered(grey, order), ordered(wide, other)))
            assert found == conv(ordered(grey, other), ordered(wide, other))
    blocked = settled(conv(ordered(grey, (0, 2, 3, 1)), Blocked(wide)))
    assert blocked == conv(dense(grey), Blocked(wide))


def test_strides_that_move_elements_stay() -> None:
    assert not lies_channels_last(dense((1, 3, 4, 4)))
    assert not lies_channels_last(dense((3, 4)))
    rows = conv(dense((2, 3, 4, 4)), dense((2, 5, 4, 4)))
    assert settled(rows) == rows
    for left in ((64, 1), (1, 1)):
        for result in ((32, 1), (1, 1)):
            found = settled(MatMul(Strided((1, 64), left), Packed((64, 32)), None, Strided((1, 32), result)))
            assert found == MatMul(dense((1, 64)), Packed((64, 32)), None, dense((1, 32)))
    heads = ordered((1, 4, 8, 16), (0, 2, 1, 3))  # one picture; heads lie inside the rows
    column = Strided((1, 4, 16, 1), (64, 16, 1, 9))
    found = settled(MatMul(heads, column, None, dense((1, 4, 8, 1))))
    assert isinstance(found, MatMul)
    assert found.src == heads
    assert found.weights == Strided((1, 4, 16, 1), (64, 16, 1, 1))
