"""TVM's kernels on Collage's team of threads: several in one launch list, and the way without a native core."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

from tvm import relax

from collage.backends.tvm_codegen.build import compile_kernel
from collage.backends.tvm_codegen.host import use_threads
from collage.backends.tvm_codegen.lower import lower
from collage.backends.tvm_codegen.run import TvmKernel, load_kernel
from collage.native import LaunchList, core_problem, team_of
from tests.helpers.tvm_functions import aligned, draw, f32, function, np_softmax, poisoned, wide

op = relax.op
needs_core = pytest.mark.skipif(bool(core_problem()), reason=core_problem())


def kernel_of(build: Callable[..., Any], *specs: Any, threads: int) -> TvmKernel:
    return load_kernel(compile_kernel(lower(function(build, *specs)), threads))


def two_results(emit: Callable[[Any], Any], x: Any) -> list[Any]:
    return [emit(op.exp(x)), emit(op.sum(x, [0]))]


@needs_core
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_kernels_of_two_artifacts_in_one_list(threads: int) -> None:
    """Exp and column sums, then a softmax of the first: parallel loops, one kernel of several calls."""
    first = kernel_of(two_results, f32(509, 300), threads=threads)
    second = kernel_of(lambda e, x: op.nn.softmax(x), f32(509, 300), threads=threads)
    assert first.parallel == second.parallel == (threads > 1)
    x = aligned(draw(f32(509, 300)))
    middle, sums = (poisoned(s) for s in first.outputs)
    last = poisoned(second.outputs[0])
    steps = [*first.steps([x], [middle, sums]), *second.steps([middle], [last])]
    run = LaunchList(team_of(threads), steps)
    for _ in range(3):
        run()
        np.testing.assert_allclose(middle, np.exp(wide(x)), rtol=1e-5)
        np.testing.assert_allclose(sums, wide(x).sum(0), atol=1e-3)
        np.testing.assert_allclose(last, np_softmax(np.exp(wide(x))), atol=1e-5)
        for out in (middle, sums, last):
            out.fill(np.nan)


def test_without_the_native_core_tvms_pool_runs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("build", "run"):
        monkeypatch.setattr(f"collage.backends.tvm_codegen.{module}.core_problem", lambda: "not built")
    use_threads(2)
    kernel = kernel_of(two_results, f32(509, 300), threads=2)
    assert not kernel.addresses
    x, outputs = aligned(draw(f32(509, 300))), [poisoned(s) for s in kernel.outputs]
    kernel.bind([x], outputs)()
    np.testing.assert_allclose(outputs[0], np.exp(wide(x)), rtol=1e-5)
    np.testing.assert_allclose(outputs[1], wide(x).sum(0), atol=1e-3)
