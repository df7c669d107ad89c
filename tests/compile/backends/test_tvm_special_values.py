"""TVM's kernels on NaN, infinities and integers at the ends of their range, against ONNX Runtime's words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

pytest.importorskip("tvm")

from collage.backends.base import UnsupportedError
from collage.backends.tvm import Tvm
from collage.backends.tvm_cuda import TvmCuda
from collage.frontend.model import import_model
from collage.frontend.subgraph import Subgraph
from collage.kernel.options import BuildOptions
from tests.compile.frontend.test_to_onnx import Net
from tests.helpers.tvm_functions import const, f32, function, op, run

NAN, INF = np.nan, np.inf
VALUES = np.array([1.5, NAN, -2.0, INF, -INF, 0.0, -0.5, 7.0] * 9 + [NAN, 3.0], np.float32)
"""Longer than a vector, with a rest that is none."""


def kept(x: Any, result: Any) -> Any:
    return np.where(np.isnan(x), x, result)


@pytest.mark.parametrize(
    ("build", "reference"),
    [
        (lambda x: op.nn.relu(x), lambda x: np.maximum(x, 0)),
        (lambda x: op.clip(x, 0, 6), lambda x: np.clip(x, 0, 6)),
        (lambda x: op.maximum(x, const(1.0)), lambda x: np.maximum(x, 1)),
        (lambda x: op.maximum(const(1.0), x), lambda x: np.maximum(x, 1)),
        (lambda x: op.minimum(x, const(1.0)), lambda x: np.minimum(x, 1)),
        (lambda x: op.sign(x), np.sign),
    ],
)
def test_nan_is_kept(build: Callable[[Any], Any], reference: Callable[[Any], Any]) -> None:
    (got,) = run(function(lambda e, x: build(x), f32(*VALUES.shape)), VALUES)
    np.testing.assert_array_equal(got, kept(VALUES, reference(VALUES)))


@pytest.mark.parametrize("most", [True, False])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_nan_of_either_operand(most: bool, dtype: str) -> None:
    x, y = VALUES.astype(dtype), VALUES[::-1].astype(dtype)
    ours, theirs = (op.maximum, np.maximum) if most else (op.minimum, np.minimum)
    spec = (x.shape, dtype)
    (got,) = run(function(lambda e, a, b: ours(a, b), spec, spec), x, y)
    np.testing.assert_array_equal(got, theirs(x, y))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_reductions_keep_nan_of_either_sign(axis: int, dtype: str, sign: float) -> None:
    x = np.random.default_rng(0).standard_normal((33, 70)).astype(dtype)
    x[3], x[4], x[5, 2:60:7], x[6, 69], x[7, 0] = -INF, INF, NAN, NAN, -INF
    x = np.copysign(x, np.where(np.isnan(x), sign, x))
    spec = (x.shape, dtype)
    most, least = run(function(lambda e, a: [e(op.max(a, [axis])), e(op.min(a, [axis]))], spec), x)
    np.testing.assert_array_equal(most, x.max(axis))
    np.testing.assert_array_equal(least, x.min(axis))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8"])
def test_argmax_gives_an_index_that_exists(axis: int, dtype: str) -> None:
    """The first of equal ones; NaN is passed over, unless it comes first of all: as ONNX Runtime does."""
    x = np.random.default_rng(0).integers(0, 5, (33, 70)).astype(dtype)
    if np.dtype(dtype).kind == "f":
        x[:, 1] = x[2] = -INF
        x[:, 3] = x[4] = NAN
        x[5, 10:20], x[6, 0] = NAN, NAN
    else:
        x[:, 1] = x[2] = np.iinfo(dtype).min
        x[:, 3] = x[4] = np.iinfo(dtype).max
    lines = np.moveaxis(x, axis, -1)
    spec = (x.shape, dtype)
    most, least = run(function(lambda e, a: [e(op.argmax(a, axis)), e(op.argmin(a, axis))], spec), x)
    np.testing.assert_array_equal(most, [first(line, np.greater) for line in lines])
    np.testing.assert_array_equal(least, [first(line, np.less) for line in lines])


def first(line: Any, better: Any) -> int:
    found = 0
    for index, value in enumerate(line):
        if better(value, line[found]):
            found = index
    return found


def test_casts_to_small_integers_wrap_around() -> None:
    x = np.array([-1.9, 300.7, 70000.0, -70000.0, 5e9, 0.5] * 7, np.float32)
    for dtype, way in (("uint8", "int32"), ("int16", "int32"), ("uint16", "int32"), ("uint32", "int64")):
        inside = x if way == "int64" else np.where(x > 2e9, 0, x).astype(np.float32)
        (got,) = run(function(lambda e, a, d=dtype: op.astype(a, d), f32(42)), inside)
        np.testing.assert_array_equal(got, inside.astype(way).astype(dtype))


@pytest.mark.parametrize("square", [op.square, lambda x: op.multiply(x, x), lambda x: op.power(x, const(2.0))])
@pytest.mark.parametrize("threads", [1, 2])
def test_products_are_rounded_before_they_are_added(square: Callable[[Any], Any], threads: int) -> None:
    """A fused multiply-add makes a little less than 0 of the difference of equal products in half of the places."""
    x = np.random.default_rng(0).standard_normal(1 << 16).astype(np.float32)

    def build(e: Any, a: Any, b: Any) -> Any:
        return op.sqrt(e(op.subtract(e(square(a)), e(square(b)))))

    (found,) = run(function(build, f32(*x.shape), f32(*x.shape)), x, x, threads=threads)
    np.testing.assert_array_equal(found, np.zeros_like(x))


SIMPLIFIED = {
    "x + 0": lambda net, x: net.op("Add", x, net.weight(np.float32(0))),
    "x - -0": lambda net, x: net.op("Sub", x, net.weight(np.float32(-0.0))),
    "x * 0": lambda net, x: net.op("Mul", x, net.weight(np.float32(0))),
    "0 / x": lambda net, x: net.op("Div", net.weight(np.float32(0)), x),
    "x - x": lambda net, x: net.op("Sub", x, x),
}
KEPT = {
    "x + -0": lambda net, x: net.op("Add", x, net.weight(np.float32(-0.0))),
    "x - 0": lambda net, x: net.op("Sub", x, net.weight(np.float32(0))),
    "0 - x": lambda net, x: net.op("Sub", net.weight(np.float32(0)), x),
    "x * 0 of one element": lambda net, x: net.op("Mul", x, net.weight(np.zeros(1, np.float32))),
    "x + 0 of one element": lambda net, x: net.op("Add", x, net.weight(np.zeros(1, np.float32))),
}
ROUNDING = np.float32(12582912)


def whole(net: Net, output: str) -> Subgraph:
    model = import_model(net.build(output), halves=True)
    return Subgraph(model, tuple(range(len(model.graph.nodes))))


@pytest.mark.parametrize("backend", [Tvm(), TvmCuda()], ids=["tvm", "tvm_cuda"])
@pytest.mark.parametrize("name", [*SIMPLIFIED, "x + c - c"])
def test_what_tvm_simplifies_is_refused(backend: Tvm | TvmCuda, name: str) -> None:
    """TVM makes x of x + 0, which changes -0, and 0 of x * 0, which may be NaN."""
    net = Net(18)
    x = net.input(16)
    if name in SIMPLIFIED:
        subgraph, words = whole(net, SIMPLIFIED[name](net, x)), "TVM simplifies"
    else:
        constant = net.weight(ROUNDING)
        subgraph = whole(net, net.op("Sub", net.op("Add", x, constant), constant))
        words = "TVM leaves out a large constant"
    with pytest.raises(UnsupportedError, match=words):
        backend.codegen(subgraph, BuildOptions())


@pytest.mark.parametrize("backend", [Tvm(), TvmCuda()], ids=["tvm", "tvm_cuda"])
def test_numbers_that_are_rounded_to_bfloat16_in_between_are_refused(backend: Tvm | TvmCuda) -> None:
    """TVM computes with the numbers before they were rounded."""
    net = Net(18)
    narrow = net.op("Cast", net.input(16), to=TensorProto.BFLOAT16)
    with pytest.raises(UnsupportedError, match="TVM rounds no numbers to bfloat16"):
        backend.codegen(whole(net, net.op("Cast", narrow, to=TensorProto.FLOAT)), BuildOptions())


@pytest.mark.parametrize("by", [None, [2, -1], [2, 3]], ids=str)
@pytest.mark.parametrize("name", ["Div", "Mod"])
def test_integers_are_divided_by_constants_that_end_no_process(name: str, by: list[int] | None) -> None:
    net = Net(18)
    x = net.input(2, dtype="int32")
    divisor = net.input(2, dtype="int32") if by is None else net.weight(np.array(by, np.int32))
    subgraph = whole(net, net.op(name, x, divisor))
    if by == [2, 3]:
        assert Tvm().codegen(subgraph, BuildOptions())
        return
    with pytest.raises(UnsupportedError, match="of integers ends the process"):
        Tvm().codegen(subgraph, BuildOptions())


@pytest.mark.parametrize("name", KEPT)
def test_zeros_that_tvm_keeps(name: str) -> None:
    from collage.backends.tvm_codegen.lower import lower
    from tests.compile.frontend.test_to_onnx import run as run_onnx

    x = np.array([0.0, -0.0, NAN, INF, -INF, 1.0, -1.0, 1e-30], np.float32)
    net = Net(18)
    output = KEPT[name](net, net.input(*x.shape))
    subgraph = whole(net, output)
    Tvm().codegen(subgraph, BuildOptions())
    part = subgraph.to_relax()
    assert lower(part.function, part.prim_funcs).outputs
    (found,), (wanted,) = run(part.function, x), run_onnx(net.build(output), [x], False)
    np.testing.assert_array_equal(found, wanted)
    numbers = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(found)[numbers], np.signbit(wanted)[numbers])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_softplus_of_small_numbers(dtype: str) -> None:
    """It is exp(x) there, whose logarithm is not infinite."""
    x = np.array([-80.0, -20.5, -17.0, -3.0, 0.0, 3.0, 17.0, 90.0, INF, -INF, NAN] * 5, dtype)
    net = Net(18)
    subgraph = whole(net, net.op("Softplus", net.input(*x.shape, dtype=dtype)))
    assert subgraph.ops == ("softplus",)
    part = subgraph.to_relax()
    (found,) = run(part.function, x)
    with np.errstate(invalid="ignore"):
        wanted = np.logaddexp(0, x.astype(np.float64))
    np.testing.assert_allclose(found, wanted.astype(dtype), rtol=1e-3 if dtype == "float16" else 1e-6)


def test_old_measurements_of_kernels_that_have_changed_are_not_used() -> None:
    """Tuned ones have stayed as they were."""
    assert Tvm().settings(BuildOptions(2)) == "schedules 7"
    assert Tvm().settings(BuildOptions(2, 8)) == "schedules 6, 8 trials"
    assert TvmCuda().settings(BuildOptions()) == "kernels 2"
