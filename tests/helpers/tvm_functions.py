"""Relax functions for the tests of TVM's kernels: poisoned outputs, checked against numpy on float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax

from collage.backends.tvm_codegen.artifact import TensorSpec, empty_aligned
from collage.backends.tvm_codegen.build import compile_kernel
from collage.backends.tvm_codegen.lower import lower
from collage.backends.tvm_codegen.run import load_kernel

op = relax.op
Spec = tuple[Sequence[int], str]


def function(build: Callable[..., Any], *specs: Spec) -> Any:
    """One dataflow block around `build(emit, *params)`, which returns an expression or a list of them."""
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType(list(s), d)) for i, (s, d) in enumerate(specs)]
    with builder.function("main", params):
        with builder.dataflow():
            result = build(builder.emit, *params)
            if isinstance(result, list):
                out = relax.Tuple([builder.emit_output(r) for r in result])
            else:
                out = builder.emit_output(result)
        builder.emit_func_output(out)
    return builder.get()["main"]


def aligned(array: Any) -> Any:
    out = empty_aligned(TensorSpec(array.shape, str(array.dtype)))
    out[...] = array
    return out


def poisoned(spec: TensorSpec) -> Any:
    out = empty_aligned(spec)
    out.fill(np.nan if out.dtype.kind == "f" else 1 if out.dtype.kind == "b" else 77)
    return out


def run(func: Any, *inputs: Any, threads: int = 1) -> list[Any]:
    kernel = load_kernel(compile_kernel(lower(func), threads))
    outputs = [poisoned(s) for s in kernel.outputs]
    call = kernel.bind([aligned(x) for x in inputs], outputs)
    call()
    first = [o.copy() for o in outputs]
    call()  # a second run finds its own results in the buffers
    for a, b in zip(first, outputs, strict=True):
        np.testing.assert_array_equal(a, b)
    return outputs


def draw(spec: Spec, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed + 17 * len(spec[0]) + sum(spec[0]))
    shape, dtype = spec
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if dtype.startswith("int"):
        return rng.integers(-9, 9, shape).astype(dtype)
    return np.asarray(rng.standard_normal(shape)).astype(dtype)


def wide(x: Any) -> Any:
    return x.astype(np.float64) if x.dtype.kind == "f" else x


def check(
    build: Callable[..., Any],
    reference: Callable[..., Any],
    *specs: Spec,
    threads: int = 1,
    rtol: float = 1e-5,
    atol: float = 2e-6,
) -> None:
    inputs = [draw(s, i) for i, s in enumerate(specs)]
    got = run(function(build, *specs), *inputs, threads=threads)
    expected = reference(*(wide(x) for x in inputs))
    expected = expected if isinstance(expected, list) else [expected]
    assert len(got) == len(expected)
    for g, e in zip(got, expected, strict=True):
        assert g.shape == np.shape(e)
        np.testing.assert_allclose(wide(g), e, rtol=rtol, atol=atol)


def f32(*shape: int) -> Spec:
    return shape, "float32"


def const(value: float, dtype: str = "float32") -> Any:
    return relax.const(value, dtype)


def np_softmax(x: Any, axis: int = -1) -> Any:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def np_windows(x: Any, k: int, stride: int, pad: float, by: int = 1) -> Any:
    x = np.pad(x, ((0, 0), (0, 0), (by, by), (by, by)), constant_values=pad)
    return np.lib.stride_tricks.sliding_window_view(x, (k, k), (2, 3))[:, :, ::stride, ::stride]
