"""ONNX models as graphs of PyTorch compute what ONNX Runtime does: each operator, and the paper's networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from collage.backends.base import UnsupportedError
from collage.testing.onnx_cases import CASES, Case, Feed
from tests.compile.frontend.test_to_onnx import NETWORKS, Net, agree, run

torch = pytest.importorskip("torch")

REFUSED = frozenset(
    """
    AffineGrid BitShift DequantizeLinear DynamicQuantizeLinear EyeLike GatherND GridSample Hardmax LpNormalization
    LpPool MatMulInteger MaxRoiPool MeanVarianceNormalization OneHot QuantizeLinear RoiAlign ScatterElements ScatterND
    Shrink Size
    """.split()
)
"""Operators that have no form in PyTorch here, so that other engines take models with them."""

REFUSED_FORMS = (
    *("average pooling with dilations", "padding of the mode", "Clip with an input 1 that is no constant"),
    *("resizing of", "resizing to", "resizing by"),
)
"""What is refused of operators that have one."""


def converted(model: onnx.ModelProto, feeds: list[Any]) -> list[Any]:
    from collage.backends.torch_graph.convert import graph_module, simplified
    from collage.backends.torch_graph.kernel import TorchSession

    return TorchSession(graph_module(simplified(model), writing=False), "cpu").run(feeds)


def net_of(each: Case) -> tuple[Net, list[str]]:
    net = Net(each.opset)
    names = []
    for given in each.inputs:
        if isinstance(given, Feed):
            names.append(f"x{len(net.feeds)}")
            net.feeds[names[-1]] = given
        else:
            names.append("" if given is None else net.weight(given))
    return net, net.ops(each.op, each.outputs, *names, **each.attrs)


@pytest.mark.parametrize("each", CASES, ids=str)
def test_operator(each: Case) -> None:
    net, results = net_of(each)
    model = net.build(*results)
    rng = np.random.default_rng(7)
    feeds = [feed.draw(rng) for feed in net.feeds.values()]
    reason = ""
    try:
        found = converted(model, feeds)
    except UnsupportedError as error:
        reason = str(error)
    if reason:
        assert each.op in REFUSED or reason.startswith(REFUSED_FORMS), reason
        return
    assert each.op not in REFUSED
    agree(found, run(model, feeds))


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name: str) -> None:
    net = Net(18)
    model = net.build(*NETWORKS[name](net))
    rng = np.random.default_rng(3)
    feeds = [feed.draw(rng) for feed in net.feeds.values()]
    if name in ("recurrent", "conditional", "contributed"):
        with pytest.raises(UnsupportedError, match="no form in PyTorch here"):
            converted(model, feeds)
        return
    agree(converted(model, feeds), run(model, feeds))


def test_softmax_of_old_operator_sets_takes_all_axes_from_one_on() -> None:
    net = Net(11)
    model = net.build(net.op("Softmax", net.input(2, 3, 4)), net.op("LogSoftmax", net.input(2, 3, 4), axis=2))
    rng = np.random.default_rng(3)
    feeds = [feed.draw(rng) for feed in net.feeds.values()]
    agree(converted(model, feeds), run(model, feeds))


def test_what_has_no_form_is_named() -> None:
    net = Net(18)
    with pytest.raises(UnsupportedError, match="ScatterND has no form in PyTorch here"):
        converted(net.build(net.op("ScatterND", net.input(4), net.weight([[1]]), net.input(1))), [])


def same(model: onnx.ModelProto, feeds: list[Any]) -> None:
    for found, wanted in zip(converted(model, feeds), run(model, feeds), strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize(("count", "most"), [(5, 3), (200, 20), (5000, 50), (40, 40)])
def test_of_equal_numbers_topk_takes_the_first(count: int, most: int, largest: int) -> None:
    x = np.round(np.random.default_rng(0).standard_normal((4, count)) * 2).astype(np.float32)
    net = Net(18)
    both = net.ops("TopK", 2, net.input(4, count), net.ints(most), axis=1, largest=largest)
    same(net.build(*both), [x])
    same(net.build(both[0]), [x])
    same(net.build(both[1]), [x])


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("keep", [0, 1])
def test_places_of_extremes_pass_over_nan(op: str, last: int, keep: int) -> None:
    nan, inf = np.nan, np.inf
    rows = [
        [1, nan, 3, 2, inf],
        [nan, 1, 2, 3, 4],
        [nan, nan, nan, nan, nan],
        [1, 1, nan, 1, 1],
        [-inf, nan, -inf, 1, nan],
        [-inf, nan, nan, nan, nan],
        [inf, nan, inf, nan, nan],
    ]
    x = np.array(rows, np.float32)
    for axis in (0, 1, -1):
        net = Net(18)
        same(net.build(net.op(op, net.input(*x.shape), axis=axis, select_last_index=last, keepdims=keep)), [x])
    whole = np.array([[3, 3, 1, 1, 3], [2, 2, 2, 2, 2]], np.int64)
    net = Net(18)
    given = net.input(2, 5, dtype="int64")
    same(net.build(net.op(op, given, axis=1, select_last_index=last, keepdims=keep)), [whole])


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_signs_of_nan(dtype: str) -> None:
    x = np.array([1.5, np.nan, -2.0, np.inf, -np.inf, 0.0, -0.5], dtype)
    net = Net(18)
    same(net.build(net.op("Sign", net.input(*x.shape, dtype=dtype))), [x])
