"""Every operator's kernel against numpy on float64, on poisoned outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("tvm")

from tvm import relax, tirx

from collage.backends.tvm_codegen.blocks import collect
from collage.backends.tvm_codegen.lower import lower
from collage.backends.tvm_codegen.schedule import schedule
from tests.tvm_functions import (
    UNARY,
    Spec,
    check,
    const,
    draw,
    f32,
    function,
    np_layer_norm,
    np_softmax,
    np_windows,
    run,
)

op = relax.op


# ----------------------------------------------------------------------------------------------------------
# -------- Elementwise


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str) -> None:
    build, reference = UNARY[name]
    check(lambda e, x: build(x), reference, f32(7, 37))


@pytest.mark.parametrize(
    "shape", [(), (1,), (1, 1, 1), (17,), (1, 5, 1, 3), (2, 3, 5, 7), (1031,), (3, 1, 70, 1)]
)
def test_odd_shapes(shape: tuple[int, ...]) -> None:
    check(
        lambda e, x, y: op.nn.relu(e(op.add(op.tanh(x), y))),
        lambda x, y: np.maximum(np.tanh(x) + y, 0),
        f32(*shape),
        f32(*shape),
    )


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((4, 5), (5,)),
        ((4, 5), (4, 1)),
        ((2, 8, 6, 6), (1, 8, 1, 1)),
        ((3, 1, 5), (4, 1)),
        ((6,), ()),
        ((1, 64), (64, 1)),
        ((1,), (1,)),
    ],
)
def test_broadcast(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    check(lambda e, x, y: op.multiply(e(op.add(x, y)), x), lambda x, y: (x + y) * x, f32(*left), f32(*right))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "int64", "int8"])
def test_arithmetic_dtypes(dtype: str) -> None:
    tolerance = 4e-3 if dtype == "float16" else 1e-6
    check(
        lambda e, x, y: op.maximum(e(op.subtract(e(op.multiply(x, y)), y)), x),
        lambda x, y: np.maximum(x * y - y, x),
        ((5, 33), dtype), ((33,), dtype), rtol=tolerance, atol=tolerance,
    )  # fmt: skip


def test_bool_where_and_cast() -> None:
    specs: tuple[Spec, ...] = (((4, 9), "bool"), f32(4, 9), f32(9))
    check(lambda e, c, x, y: op.where(c, x, y), lambda c, x, y: np.where(c, x, y), *specs)
    check(
        lambda e, c, x, y: [e(op.logical_not(c)), e(op.greater(x, y)), e(op.astype(c, "int64"))],
        lambda c, x, y: [~c, x > y, c.astype(np.int64)], *specs,
    )  # fmt: skip


def test_exp_edges() -> None:
    x = np.array(
        [-np.inf, -150, -104, -103, -87.4, -1e-8, 0, 1, 88.3, 88.5, 88.7, 89, 1000, np.inf, np.nan],
        np.float32,
    )
    (got,) = run(function(lambda e, x: op.exp(x), f32(15)), x)
    with np.errstate(over="ignore", under="ignore"):
        np.testing.assert_allclose(
            got, np.exp(x.astype(np.float64)).astype(np.float32), rtol=1e-6, atol=1.2e-38
        )


def test_log_edges() -> None:
    x = np.array([0, -1, 1e-42, 1.2e-38, 0.3, 0.7071, 1, 1.0000001, 2, 3e38, np.inf, np.nan], np.float32)
    (got,) = run(function(lambda e, x: op.log(x), f32(12)), x)
    with np.errstate(divide="ignore", invalid="ignore"):
        np.testing.assert_allclose(got, np.log(x.astype(np.float64)), rtol=4e-7, atol=1e-7)


def test_saturation_and_nan() -> None:
    x = np.array([-np.inf, -50, -9, 9, 50, np.inf, np.nan], np.float32)
    tanh, sigmoid, erf = run(
        function(lambda e, x: [e(op.tanh(x)), e(op.sigmoid(x)), e(op.erf(x))], f32(7)), x
    )
    np.testing.assert_allclose(tanh, np.tanh(x), atol=1e-6)
    np.testing.assert_allclose(sigmoid, 1 / (1 + np.exp(-x.astype(np.float64))), atol=1e-6)
    np.testing.assert_allclose(erf[:-1], [-1, -1, -1, 1, 1, 1], atol=1e-6)
    assert np.isnan(erf[-1])


@pytest.mark.parametrize("exponent", [-1.0, -0.5, 0.5, 1.0, 2.0, 3.0, 4.0, 1.7])
def test_constant_power(exponent: float) -> None:
    check(
        lambda e, x: op.power(e(op.add(op.abs(x), const(0.1))), const(exponent)),
        lambda x: (np.abs(x) + 0.1) ** exponent,
        f32(5, 21),
    )


def test_deep_chains_of_polynomials_compile() -> None:
    """TVM's code generator takes time exponential in their depth: half a minute for three, and for ever for four."""

    def mish(emit: Any, x: Any) -> Any:
        softplus = emit(op.log(emit(op.add(emit(op.exp(x)), relax.const(1.0)))))
        return op.multiply(x, emit(op.sigmoid(emit(op.tanh(softplus)))))

    def by_numpy(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return x / (1 + np.exp(-np.tanh(np.log1p(np.exp(x)))))

    for func in lower(function(mish, f32(3, 41))).funcs.values():
        for store in collect(schedule(func, 1), tirx.BufferStore):
            assert len(collect(store.value, tirx.Let)) < 20  # all four in one store have 23
    check(mish, by_numpy, f32(3, 41))


# ----------------------------------------------------------------------------------------------------------
# -------- Layout


def test_layout_operators() -> None:
    x = f32(2, 6, 5, 7)
    check(lambda e, x: op.permute_dims(x, [0, 2, 1, 3]), lambda x: x.transpose(0, 2, 1, 3), x)
    check(lambda e, x: op.permute_dims(x, [0, 2, 3, 1]), lambda x: x.transpose(0, 2, 3, 1), x)
    check(
        lambda e, x: op.reshape(e(op.permute_dims(x)), (35, 12)), lambda x: x.transpose().reshape(35, 12), x
    )
    check(
        lambda e, x: op.nn.pad(x, [0, 0, 1, 1, 2, 0, 0, 3]),
        lambda x: np.pad(x, ((0, 0), (1, 1), (2, 0), (0, 3))),
        x,
    )
    check(
        lambda e, x: op.strided_slice(x, [1, 3], [1, 0], [5, 7], [2, 3]), lambda x: x[:, 1:5:2, :, 0:7:3], x
    )
    check(lambda e, x: op.flip(x, 2), lambda x: x[:, :, ::-1], x)
    check(lambda e, x: op.tile(x, (1, 2, 1, 1)), lambda x: np.tile(x, (1, 2, 1, 1)), x)


@pytest.mark.parametrize("shape", [(64, 48), (1, 64, 32, 32), (3, 20, 17), (33, 65)])
def test_transposes(shape: tuple[int, ...]) -> None:
    axes = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    for threads in (1, 2):
        check(
            lambda e, x: op.permute_dims(x, axes), lambda x: x.transpose(axes), f32(*shape), threads=threads
        )


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_concat_fused_with_elementwise(axis: int) -> None:
    check(
        lambda e, x, y: op.nn.relu(e(op.concat([x, e(op.negative(y)), x], axis))),
        lambda x, y: np.maximum(np.concatenate([x, -y, x], axis), 0), f32(3, 4, 5, 6), f32(3, 4, 5, 6),
    )  # fmt: skip


@pytest.mark.parametrize("index", ["int32", "int64"])
def test_gather(index: str) -> None:
    table = draw(f32(50, 9))
    where = np.random.default_rng(0).integers(0, 50, (4, 3)).astype(index)
    (got,) = run(function(lambda e, t, i: op.take(t, i, axis=0), f32(50, 9), ((4, 3), index)), table, where)
    np.testing.assert_array_equal(got, table[where])


# ----------------------------------------------------------------------------------------------------------
# -------- Reductions


REDUCE: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sum": (op.sum, np.sum),
    "mean": (op.mean, np.mean),
    "max": (op.max, np.max),
    "min": (op.min, np.min),
    "variance": (op.variance, np.var),
}


@pytest.mark.parametrize("name", REDUCE)
@pytest.mark.parametrize("shape", [(3, 5, 33), (4, 16, 130), (1, 8, 7, 7), (2, 1, 1, 3), (96, 80)])
def test_reductions(name: str, shape: tuple[int, ...]) -> None:
    build, reference = REDUCE[name]
    last = len(shape) - 1
    for axes in ([last], [0], [1], list(range(last + 1)), [last - 1, last]):
        for keep in (False, True) if axes == [1] else (False,):
            check(
                lambda e, x, axes=axes, keep=keep: build(x, axes, keep),
                lambda x, axes=axes, keep=keep: reference(x, tuple(axes), keepdims=keep),
                f32(*shape),
            )


@pytest.mark.parametrize("dtype", ["float64", "int32", "int64"])
def test_reduction_dtypes(dtype: str) -> None:
    check(
        lambda e, x: [e(op.sum(x, [1])), e(op.max(x, [0])), e(op.min(x, [1]))],
        lambda x: [x.sum(1), x.max(0), x.min(1)],
        ((6, 41), dtype),
    )


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((12, 64, 64), -1), ((5, 33), -1), ((2, 21, 9, 9), 1), ((1, 1000), -1), ((3, 7), 0), ((130,), 0)],
)
def test_softmax(shape: tuple[int, ...], axis: int) -> None:
    for threads in (1, 2):
        check(
            lambda e, x: op.nn.softmax(x, axis), lambda x: np_softmax(x, axis), f32(*shape), threads=threads
        )
    check(lambda e, x: op.nn.log_softmax(x, axis), lambda x: np.log(np_softmax(x, axis)), f32(*shape))


@pytest.mark.parametrize("shape", [(64, 768), (1, 5, 33), (7, 1), (2, 130)])
def test_layer_norm(shape: tuple[int, ...]) -> None:
    n = shape[-1]
    check(
        lambda e, x, g, b: op.nn.layer_norm(x, g, b, axes=[-1]),
        np_layer_norm,
        f32(*shape),
        f32(n),
        f32(n),
        atol=1e-5,
    )


def test_batch_norm_and_relu() -> None:
    def build(emit: Callable[[Any], Any], x: Any, g: Any, b: Any, m: Any, v: Any) -> Any:
        n = emit(op.nn.batch_norm(x, g, b, m, emit(op.abs(v)), 1, training=False))
        return op.nn.relu(emit(relax.TupleGetItem(n, 0)))

    def reference(x: Any, *t: Any) -> Any:
        g, b, m, v = (a.reshape(-1, 1, 1) for a in t)
        return np.maximum((x - m) / np.sqrt(np.abs(v) + 1e-5) * g + b, 0)

    check(build, reference, f32(2, 6, 9, 11), *[f32(6)] * 4, atol=1e-4, rtol=1e-4)


# ----------------------------------------------------------------------------------------------------------
# -------- Windows


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [(8, 8), (15, 13)])
def test_pools(stride: int, size: tuple[int, int]) -> None:
    shape = f32(2, 5, *size)
    s, p = (stride, stride), (1, 1, 1, 1)
    check(
        lambda e, x: op.nn.max_pool2d(x, (3, 3), s, p),
        lambda x: np_windows(x, 3, stride, -np.inf).max((-1, -2)),
        shape,
    )

    def total(x: Any) -> Any:
        return np_windows(x, 3, stride, 0).sum((-1, -2))

    check(
        lambda e, x: op.nn.avg_pool2d(x, (3, 3), s, p, count_include_pad=True), lambda x: total(x) / 9, shape
    )
    check(
        lambda e, x: op.nn.avg_pool2d(x, (3, 3), s, p, count_include_pad=False),
        lambda x: total(x) / total(np.ones_like(x)),
        shape,
    )


def test_pool_of_nhwc_and_of_elementwise() -> None:
    def build(emit: Callable[[Any], Any], x: Any) -> Any:
        return op.nn.max_pool2d(emit(op.exp(x)), (2, 2), (2, 2), layout="NHWC")

    def reference(x: Any) -> Any:
        return np.exp(x).reshape(2, 4, 2, 5, 2, 16).max((2, 4))

    check(build, reference, f32(2, 8, 10, 16))


@pytest.mark.parametrize("include", [True, False])
def test_ceil_mode_average_agrees_with_tvm(include: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = f32(1, 3, 8, 8)
    func = function(
        lambda e, x: op.nn.avg_pool2d(
            x, (3, 3), (2, 2), (1, 1, 1, 1), ceil_mode=True, count_include_pad=include
        ),
        spec,
    )
    (ours,) = run(func, draw(spec))
    monkeypatch.setattr("collage.backends.tvm_codegen.lower.OPERATORS", {})
    (theirs,) = run(func, draw(spec))
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_depthwise_convolution() -> None:
    check(
        lambda e, x, w: op.nn.conv2d(x, w, padding=(1, 1), groups=32),
        lambda x, w: np.einsum("nchwij,cij->nchw", np_windows(x, 3, 1, 0), w[:, 0]),
        f32(1, 32, 30, 30), f32(32, 1, 3, 3),
    )  # fmt: skip


# ----------------------------------------------------------------------------------------------------------
# -------- Random graphs


STEPS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "tanh": UNARY["tanh"],
    "relu": UNARY["relu"],
    "softmax": (op.nn.softmax, np_softmax),
    "softmax0": (lambda x: op.nn.softmax(x, 0), lambda x: np_softmax(x, 0)),
    "centre": (lambda x: op.subtract(x, op.mean(x, [-1], True)), lambda x: x - x.mean(-1, keepdims=True)),
    "centre0": (lambda x: op.subtract(x, op.mean(x, [0], True)), lambda x: x - x.mean(0, keepdims=True)),
    "scale": (lambda x: op.multiply(x, op.max(x, [1], True)), lambda x: x * x.max(1, keepdims=True)),
    "swap": (lambda x: op.permute_dims(x, [0, 2, 1]), lambda x: x.transpose(0, 2, 1)),
    "double": (lambda x: op.concat([x, op.negative(x)], 1), lambda x: np.concatenate([x, -x], 1)),
    "total": (lambda x: op.add(x, op.mean(x)), lambda x: x + x.mean()),
    "slice": (lambda x: op.strided_slice(x, [2], [0], [1 << 20], [2]), lambda x: x[:, :, ::2]),
}


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    shape=st.tuples(st.integers(1, 5), st.integers(1, 20), st.integers(1, 70)),
    steps=st.lists(
        st.tuples(st.sampled_from(sorted(STEPS)), st.booleans(), st.booleans()), min_size=1, max_size=6
    ),
    threads=st.sampled_from([1, 2]),
)
def test_random_chains(
    shape: tuple[int, int, int], steps: list[tuple[str, bool, bool]], threads: int
) -> None:
    """Chains of maps, reductions and layout changes, some with skip connections, some values returned."""

    def build(emit: Callable[[Any], Any], x: Any) -> list[Any]:
        results = []
        for name, skip, keep in steps:
            y = emit(STEPS[name][0](x))
            x = emit(op.add(y, x)) if skip and list(y.ty.shape) == list(x.ty.shape) else y
            if keep:
                results.append(x)
        return results if steps[-1][2] else [*results, x]

    def reference(x: Any) -> list[Any]:
        results = []
        for name, skip, keep in steps:
            y = STEPS[name][1](x)
            x = y + x if skip and y.shape == x.shape else y
            if keep:
                results.append(x)
        return results if steps[-1][2] else [*results, x]

    check(build, reference, f32(*shape), threads=threads, rtol=2e-4, atol=2e-4)


# ----------------------------------------------------------------------------------------------------------
# -------- Running sums


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize(
    ("shape", "axis"), [((4, 8), 0), ((4, 8), 1), ((3, 40, 17), 1), ((1, 8, 16, 4), 2), ((17,), 0), ((1,), 0)]
)
def test_running_sums(shape: tuple[int, ...], axis: int, exclusive: bool) -> None:
    for threads in (1, 2):
        check(
            lambda e, x: op.cumsum(x, axis, exclusive=exclusive),
            lambda x: np.cumsum(x, axis) - (x if exclusive else 0),
            f32(*shape),
            threads=threads,
            atol=1e-5,
        )
