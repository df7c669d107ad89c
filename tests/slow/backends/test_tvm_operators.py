"""TVM's kernels: each operator against ONNX Runtime, and schedules against numpy on float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("tvm")

from tvm import relax, tirx

from collage.backends.tvm import Tvm
from collage.backends.tvm_codegen.lower import lower
from collage.backends.tvm_codegen.prim_blocks import collect
from collage.backends.tvm_codegen.schedule import schedule
from collage.testing.onnx_cases import CASES
from tests.helpers.semantics.run import try_case
from tests.helpers.tvm_functions import (
    check,
    const,
    draw,
    f32,
    function,
    np_softmax,
    run,
)

op = relax.op


@pytest.mark.parametrize("name", sorted({each.op for each in CASES}))
def test_operators_of_onnx(name: str) -> None:
    """Each computes what ONNX Runtime computes. Special values are in `test_tvm_special_values.py`."""
    for case in (each for each in CASES if each.op == name):
        with np.errstate(all="ignore"):
            cells = [each for each in try_case(case, {"tvm": Tvm()}, 2) if each.backend == "tvm"]
        wrong = [each for each in cells if each.status not in ("same", "not offered")]
        assert not [each for each in wrong if each.kind in ("", "usual numbers", "the whole range of integers")]


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1), (17,), (1, 5, 1, 3), (2, 3, 5, 7), (1031,), (3, 1, 70, 1)])
def test_odd_shapes(shape: tuple[int, ...]) -> None:
    check(
        lambda e, x, y: op.nn.relu(e(op.add(op.tanh(x), y))),
        lambda x, y: np.maximum(np.tanh(x) + y, 0),
        f32(*shape),
        f32(*shape),
    )


def test_exp_edges() -> None:
    x = np.array(
        [-np.inf, -150, -104, -103, -87.4, -1e-8, 0, 1, 88.3, 88.5, 88.7, 89, 1000, np.inf, np.nan],
        np.float32,
    )
    (got,) = run(function(lambda e, x: op.exp(x), f32(15)), x)
    with np.errstate(over="ignore", under="ignore"):
        np.testing.assert_allclose(got, np.exp(x.astype(np.float64)).astype(np.float32), rtol=1e-6, atol=1.2e-38)


def test_log_edges() -> None:
    x = np.array([0, -1, 1e-42, 1.2e-38, 0.3, 0.7071, 1, 1.0000001, 2, 3e38, np.inf, np.nan], np.float32)
    (got,) = run(function(lambda e, x: op.log(x), f32(12)), x)
    with np.errstate(divide="ignore", invalid="ignore"):
        np.testing.assert_allclose(got, np.log(x.astype(np.float64)), rtol=4e-7, atol=1e-7)


def test_saturation_and_nan() -> None:
    x = np.array([-np.inf, -50, -9, 9, 50, np.inf, np.nan], np.float32)
    tanh, sigmoid, erf = run(function(lambda e, x: [e(op.tanh(x)), e(op.sigmoid(x)), e(op.erf(x))], f32(7)), x)
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


@pytest.mark.parametrize("shape", [(64, 48), (1, 64, 32, 32), (3, 20, 17), (33, 65)])
def test_transposes(shape: tuple[int, ...]) -> None:
    axes = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
    for threads in (1, 2):
        check(lambda e, x: op.permute_dims(x, axes), lambda x: x.transpose(axes), f32(*shape), threads=threads)


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


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((12, 64, 64), -1), ((5, 33), -1), ((2, 21, 9, 9), 1), ((1, 1000), -1), ((3, 7), 0), ((130,), 0)],
)
def test_softmax(shape: tuple[int, ...], axis: int) -> None:
    for threads in (1, 2):
        check(lambda e, x: op.nn.softmax(x, axis), lambda x: np_softmax(x, axis), f32(*shape), threads=threads)
    check(lambda e, x: op.nn.log_softmax(x, axis), lambda x: np.log(np_softmax(x, axis)), f32(*shape))


@pytest.mark.parametrize("include", [True, False])
def test_ceil_mode_average_agrees_with_tvm(include: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = f32(1, 3, 8, 8)
    func = function(
        lambda e, x: op.nn.avg_pool2d(x, (3, 3), (2, 2), (1, 1, 1, 1), ceil_mode=True, count_include_pad=include),
        spec,
    )
    (ours,) = run(func, draw(spec))
    monkeypatch.setattr("collage.backends.tvm_codegen.lower.OPERATORS", {})
    (theirs,) = run(func, draw(spec))
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


STEPS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "tanh": (op.tanh, np.tanh),
    "relu": (op.nn.relu, lambda x: np.maximum(x, 0)),
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
    steps=st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.booleans(), st.booleans()), min_size=1, max_size=6),
    threads=st.sampled_from([1, 2]),
)
def test_random_chains(shape: tuple[int, int, int], steps: list[tuple[str, bool, bool]], threads: int) -> None:
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
