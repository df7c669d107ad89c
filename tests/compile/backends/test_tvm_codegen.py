"""What becomes a TVM kernel and what is refused, and the bytes, buffers and threads of one."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

from tvm import relax, tirx
from tvm.script import tirx as T  # noqa: N812

from collage.backends.tvm_codegen import build as build_module
from collage.backends.tvm_codegen.build import compile_kernel
from collage.backends.tvm_codegen.contraction import UnscheduledError
from collage.backends.tvm_codegen.lower import LoweringError, lower
from collage.backends.tvm_codegen.run import load_kernel
from collage.frontend.model import import_model
from collage.frontend.subgraph import Subgraph
from tests.compile.frontend.test_to_onnx import Net
from tests.helpers.tvm_functions import Spec, aligned, check, draw, f32, function, np_softmax, poisoned, wide

op = relax.op
# ----------------------------------------------------------------------------------------------------------
# -------- Refusals


@pytest.mark.parametrize(
    ("build", "specs"),
    [
        (lambda e, x, w: op.nn.conv2d(x, w, padding=(1, 1)), (f32(1, 64, 28, 28), f32(64, 64, 3, 3))),
        (
            lambda e, x, w: op.nn.conv2d(x, w, padding=(1, 1), groups=32),
            (f32(1, 128, 28, 28), f32(128, 4, 3, 3)),
        ),
        (lambda e, x, w: op.nn.relu(e(op.matmul(x, w))), (f32(64, 256), f32(256, 256))),
        (lambda e, x, w: op.nn.conv2d_transpose(x, w, (2, 2)), (f32(1, 32, 16, 16), f32(32, 32, 2, 2))),
    ],
)
def test_contractions_are_refused(build: Callable[..., Any], specs: tuple[Spec, ...]) -> None:
    with pytest.raises(UnscheduledError, match=r"MFLOP .* needs a tuned schedule \(--tune-trials\)"):
        compile_kernel(lower(function(build, *specs)), 1)


def test_refused_functions() -> None:
    with pytest.raises(LoweringError, match="no elements"):
        lower(function(lambda e, x: op.exp(x), f32(0, 3)))
    with pytest.raises(LoweringError, match="bfloat16"):
        lower(function(lambda e, x: op.exp(x), ((3,), "bfloat16")))
    with pytest.raises(LoweringError, match="parameter"):
        lower(function(lambda e, x: [e(op.exp(x)), x], f32(3)))

    def twice(emit: Callable[[Any], Any], x: Any) -> list[Any]:
        y = emit(op.exp(x))
        return [y, y]

    with pytest.raises(LoweringError, match="second time"):
        lower(function(twice, f32(3)))
    n = tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType([n], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(op.exp(x))
        builder.emit_func_output(y)
    with pytest.raises(LoweringError, match="symbolic"):
        lower(builder.get()["main"])


# ----------------------------------------------------------------------------------------------------------
# -------- Lowering, bytes, buffers, threads


def test_existing_prim_funcs_and_constants() -> None:
    @T.prim_func(s_tir=True, private=True)  # type: ignore[untyped-decorator]
    def double(
        a: T.Buffer((T.int64(4), T.int64(6)), "float32"),  # type: ignore[valid-type]
        b: T.Buffer((T.int64(4), T.int64(6)), "float32"),  # type: ignore[valid-type]
    ) -> None:
        for i, j in T.grid(T.int64(4), T.int64(6)):
            with T.sblock("double"):
                vi, vj = T.axis.remap("SS", [i, j])
                b[vi, vj] = a[vi, vj] * T.float32(2)

    table = np.arange(6, dtype=np.float32)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([4, 6], "float32"))
    callee = builder.add_func(double, "double")
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.call_tir(callee, [x], relax.TensorType([4, 6], "float32")))
            z = builder.emit_output(op.add(y, relax.const(table)))
        builder.emit_func_output(z)
    func = builder.get()["main"]
    with pytest.raises(LoweringError, match="double"):
        lower(func)
    kernel = load_kernel(compile_kernel(lower(func, {"double": double}), 1))
    data, out = aligned(draw(f32(4, 6))), poisoned(kernel.outputs[0])
    kernel.bind([data], [out])()
    np.testing.assert_allclose(out, data * 2 + table, rtol=1e-6)


@pytest.mark.parametrize("fused", [True, False])
def test_several_prim_funcs(fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `lower` does when FuseTIR cannot make one PrimFunc of the whole function."""
    names = ("AnnotateTIROpPattern", "FuseOps", "FuseTIR", "DeadCodeElimination") if fused else ()
    passes = [getattr(relax.transform, n)() for n in names]
    monkeypatch.setattr(
        "collage.backends.tvm_codegen.lower._fuse",
        lambda mod: functools.reduce(lambda m, p: p(m), passes, mod),
    )

    def build(emit: Callable[[Any], Any], b: Any, x: Any) -> list[Any]:
        s = emit(op.nn.softmax(emit(op.subtract(x, b))))
        t = emit(op.split(s, 2, 1))
        return [emit(op.exp(emit(op.sum(s, [0])))), s, emit(op.negative(emit(relax.TupleGetItem(t, 1))))]

    def reference(b: Any, x: Any) -> list[Any]:
        s = np_softmax(x - b)
        return [np.exp(s.sum(0)), s, -s[:, 5:]]

    assert len(lower(function(build, f32(10), f32(7, 10))).calls) > 2
    check(build, reference, f32(10), f32(7, 10))


def test_bind_checks_its_buffers() -> None:
    kernel = load_kernel(compile_kernel(lower(function(lambda e, x: op.exp(x), f32(4, 16))), 1))
    x, y = aligned(draw(f32(4, 16))), poisoned(kernel.outputs[0])
    raw = np.zeros(4 * 16 * 4 + 128, np.uint8)
    start = -raw.ctypes.data % 64 + 4
    bad: list[tuple[Any, Any, str]] = [
        (raw[start : start + 256].view(np.float32).reshape(4, 16), y, "boundary"),
        (x.astype(np.float64), y, "float64"),
        (x[:, :8], y, "expected"),
        (aligned(np.zeros((16, 4), np.float32)).T, y, "contiguous"),
        (x, x, "overlaps"),
    ]
    for params, output, message in bad:
        with pytest.raises(ValueError, match=message):
            kernel.bind([params], [output])
    with pytest.raises(ValueError, match="2 param arrays given, 1 expected"):
        kernel.bind([x, x], [y])
    frozen = aligned(x)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        kernel.bind([x], [frozen])
    kernel.bind([frozen], [y])()
    np.testing.assert_allclose(y, np.exp(x.astype(np.float64)), rtol=1e-6)


@pytest.mark.parametrize("shape", [(509, 211), (100_003,), (2, 64, 57, 57), (1, 300_000), (3, 40_000)])
def test_parallel_kernels(shape: tuple[int, ...]) -> None:
    def build(emit: Callable[[Any], Any], x: Any) -> list[Any]:
        y = emit(op.exp(x))
        return [y, emit(op.sum(x, [len(shape) - 1])), emit(op.max(x))]

    check(build, lambda x: [np.exp(x), x.sum(-1), x.max()], f32(*shape), threads=2, atol=2e-3)


def test_fallback_schedule_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> None:
        raise RuntimeError("no rule")

    monkeypatch.setattr("collage.backends.tvm_codegen.schedule._place", broken)
    for threads in (1, 2):
        check(lambda e, x: op.nn.softmax(x), np_softmax, f32(64, 1100), threads=threads)


WAITS = """
import os, signal, sys, threading
sys.path.insert(0, sys.argv[1])
from collage.backends.tvm import Tvm
from collage.kernel.options import BuildOptions
from tests.compile.backends.test_tvm_codegen import sums
signal.signal(signal.SIGINT, signal.default_int_handler)
Tvm().codegen(sums(), BuildOptions(2))
for seconds in (0.5, 1.0, 1.5):  # one that comes before the thread waits does not wake it
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()
threading.Timer(10.0, os._exit, (1,)).start()
lock = threading.Lock()
lock.acquire()
try:
    lock.acquire()
except KeyboardInterrupt:
    os._exit(0)
"""


def sums() -> Subgraph:
    """A region whose loops are split into parts that TVM has to reason about."""
    net = Net(18)
    x = net.input(509, 211)
    model = import_model(net.build(net.op("Relu", net.op("Add", x, x))))
    return Subgraph(model, tuple(range(len(model.graph.nodes))))


def test_ctrl_c_interrupts_what_waits_after_a_kernel_was_built() -> None:
    """TVM's solver puts the action of SIGINT back so that the system goes on waiting after the signal."""
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", WAITS, str(root)], cwd=root, timeout=120, check=False)
    assert done.returncode == 0


def test_other_constants_have_the_same_code_and_their_own_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network has the same region many times, each with weights of its own."""
    made: list[Any] = []
    build = build_module._build
    monkeypatch.setattr(build_module, "_build", lambda *args: made.append(args) or build(*args))
    build_module._code.cache_clear()
    x = aligned(draw(f32(4, 8)))
    for seed in range(3):
        factor = draw(f32(8), seed)
        lowered = lower(function(lambda e, x, f=factor: op.tanh(e(op.multiply(x, relax.const(f)))), f32(4, 8)))
        kernel = load_kernel(compile_kernel(lowered, 1))
        y = poisoned(kernel.outputs[0])
        kernel.bind([x], [y])()
        np.testing.assert_allclose(y, np.tanh(wide(x) * factor), rtol=1e-5)
    assert len(made) == 1
