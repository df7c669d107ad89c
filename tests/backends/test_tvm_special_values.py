"""TVM's kernels on NaN, infinities and integers at the ends of their range, against ONNX Runtime's words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

from tests.tvm_functions import const, f32, function, op, run

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


def test_a_maximum_of_nothing_but_infinities() -> None:
    x = np.full((4, 70), -INF, np.float32)
    most, least = run(function(lambda e, a: [e(op.max(a, [1])), e(op.min(a, [1]))], f32(4, 70)), x)
    assert (most == -INF).all() and (least == -INF).all()


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


def test_equality_of_booleans() -> None:
    x, y = VALUES > 0, VALUES[::-1] > 0
    spec = (x.shape, "bool")
    (got,) = run(function(lambda e, a, b: op.equal(a, b), spec, spec), x, y)
    np.testing.assert_array_equal(got, x == y)


def test_a_relu_is_still_one_instruction() -> None:
    from collage.backends.tvm_codegen.keep_nan import keep_nan
    from collage.backends.tvm_codegen.lower import lower

    (func,) = lower(function(lambda e, x: op.nn.relu(x), f32(64))).funcs.values()
    text = str(keep_nan(func))
    assert "isnan" not in text and "T.max" not in text
