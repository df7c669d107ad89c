"""TVM's kernels for NVIDIA GPUs, without a GPU: NVRTC compiles them, and a stand-in for CUDA's threads runs them."""

from __future__ import annotations

import functools
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import collage
from collage.backends.base import BackendKind, UnsupportedError
from collage.backends.tvm import Tvm
from collage.backends.tvm_codegen.build import compile_kernel as compile_for_cpu
from collage.backends.tvm_codegen.lower import LoweredKernel, LoweringError, lower
from collage.backends.tvm_codegen.run import load_kernel
from collage.backends.tvm_cuda import TvmCuda
from collage.backends.tvm_cuda_codegen.artifact import pack, unpack
from collage.backends.tvm_cuda_codegen.build import compile_kernel, sources_of
from collage.backends.tvm_cuda_codegen.nvrtc import compile_cubin
from collage.backends.tvm_cuda_codegen.source import CudaSource
from collage.backends.tvm_cuda_codegen.wide import WIDE_SUMS
from collage.core.cuda import NoGpuError
from collage.frontend.model import Model, import_model
from collage.frontend.subgraph import Subgraph
from collage.graph.storage import Storage
from collage.kernel.buffers import aligned_copy
from collage.kernel.options import BuildOptions, Variant
from collage.patterns.context import MatchContext
from collage.patterns.match import find_matches
from collage.testing import onnx_cases
from collage.testing.onnx_cases import Array, Case, Feed
from tests.compile.frontend.test_to_onnx import NETWORKS, Net, agree
from tests.helpers.cuda_driver import Driver, no_driver, pretend
from tests.helpers.cuda_on_cpu import CpuThreads
from tests.helpers.tvm_functions import draw, f32, function, np_softmax, np_windows, poisoned

op = pytest.importorskip("tvm.relax").op

GROUPS = (
    "UNARY",
    "BINARY",
    "PRODUCTS",
    "POOLS",
    "NORMS",
    "REDUCTIONS",
    "DATA",
    "IMAGES",
    "QUANTISED",
    "NETWORKS",
)
EM_CUDA = 190


@dataclass(frozen=True)
class Kernel:
    """A subgraph that a pattern has found, lowered, with values of its inputs."""

    name: str
    lowered: LoweredKernel
    inputs: tuple[Array, ...]

    @functools.cached_property
    def sources(self) -> list[CudaSource]:
        """What TVM makes of it for ``sm_90``, once for the tests that run and that compile it."""
        return sources_of(self.lowered, "sm_90")


def nets(group: str) -> dict[str, tuple[Net, Sequence[str]]]:
    """Small networks by name, each with its outputs: one operator each, or several."""
    found: dict[str, tuple[Net, Sequence[str]]] = {}
    if group == "NETWORKS":
        for name in ("attention", "branches", "convolutions", "dense", "normalised"):
            net = Net(18)
            found[name] = net, NETWORKS[name](net)
        return found
    cases: list[Case] = getattr(onnx_cases, group)
    for case in cases:
        net, names = Net(case.opset), []
        for each in case.inputs:
            if isinstance(each, Feed):
                names.append(f"x{len(net.feeds)}")
                net.feeds[names[-1]] = each
            else:
                names.append("" if each is None else net.weight(each))
        found[str(case)] = net, net.ops(case.op, case.outputs, *names, **case.attrs)
    return found


def matched(model: Model) -> list[tuple[int, ...]]:
    """The nodes of what the backend's patterns find, the largest first: all that those of the CPU's find, too."""
    context, options = MatchContext(model), BuildOptions()
    found, on_cpu = (
        {match.nodes for match in find_matches(context, backend.name, backend.sources(options))[0]}
        for backend in (TvmCuda(), Tvm())
    )
    assert on_cpu <= found
    return sorted(found, key=lambda nodes: (-len(nodes), nodes))


@functools.cache
def kernels(group: str) -> tuple[Kernel, ...]:
    """For each network, the largest subgraph that begins at its inputs; of networks with names, all such subgraphs."""
    found = []
    for name, (net, outputs) in nets(group).items():
        model = import_model(net.build(*outputs))
        rng = np.random.default_rng(7)
        values = {v: feed.draw(rng) for v, feed in zip(model.graph.inputs, net.feeds.values(), strict=True)}
        for nodes in matched(model):
            subgraph = Subgraph(model, nodes)
            if not set(subgraph.inputs) <= set(values):
                continue
            part = subgraph.to_relax()
            try:
                lowered = lower(part.function, part.prim_funcs, WIDE_SUMS)
            except LoweringError:  # it has no kernel
                continue
            if not all(each.dtype for each in lowered.outputs):  # nothing is computed, but a constant returned
                continue
            found.append(Kernel(f"{name}: {subgraph}", lowered, tuple(values[v] for v in subgraph.inputs)))
            if group != "NETWORKS":
                break
    return tuple(found)


def on_cpu(kernel: Kernel) -> list[Any]:
    """What TVM's kernel for the CPU computes, which other tests compare with ONNX Runtime."""
    loaded = load_kernel(compile_for_cpu(kernel.lowered, 1))
    outputs = [poisoned(each) for each in loaded.outputs]
    loaded.bind([aligned_copy(np.asarray(each)) for each in kernel.inputs], outputs)()
    return outputs


@pytest.mark.parametrize("group", GROUPS)
def test_what_the_kernels_compute(group: str, tmp_path: Path) -> None:
    """The source for the GPU, run by a stand-in for its threads, gives what the kernel for the CPU gives."""
    threads = CpuThreads(tmp_path)
    prepared = [(each, threads.add(each.lowered, sources=each.sources)) for each in kernels(group)]
    assert prepared
    for kernel, ready in prepared:
        try:
            agree(threads.run(ready, kernel.inputs), on_cpu(kernel))
        except AssertionError as error:
            raise AssertionError(f"{kernel.name}: {error}") from error


@pytest.mark.parametrize("group", GROUPS)
def test_nvrtc_compiles_the_kernels(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For sm_90, and with each function that is launched in the machine code."""
    pytest.importorskip("cuda.bindings.nvrtc")
    for kernel in kernels(group):
        made = kernel.sources
        monkeypatch.setattr("collage.backends.tvm_cuda_codegen.build.sources_of", lambda *_, made=made: made)
        found = unpack(compile_kernel(kernel.lowered, "sm_90"))
        assert found.launches, kernel.name
        for launch in found.launches:
            cubin = found.cubins[launch.cubin]
            assert cubin[:4] == b"\x7fELF"
            assert struct.unpack_from("<H", cubin, 18) == (EM_CUDA,)
            assert f".text.{launch.function}\0".encode() in cubin, kernel.name


# -- single kernels ----------------------------------------------------------------------------------------


def test_special_values(tmp_path: Path) -> None:
    """Maxima and minima keep NaN and find infinities alone, whether one thread looks for them or many."""
    x = np.full((4, 40), -np.inf, np.float32)
    x[1, 3], x[2, 5], x[3, 7] = -1e30, np.inf, np.nan
    threads = CpuThreads(tmp_path)
    built: list[Callable[..., Any]] = [
        lambda e, x: op.max(x, [1]),
        lambda e, x: op.min(e(op.negative(x)), [1]),
        lambda e, x: op.nn.relu(x),
        lambda e, x: op.nn.softmax(x),
    ]
    ready = [threads.add(lower(function(each, f32(4, 40)))) for each in built]
    most, least, relu, softmax = (threads.run(each, [x])[0] for each in ready)
    np.testing.assert_array_equal(most, [-np.inf, np.float32(-1e30), np.inf, np.nan])
    np.testing.assert_array_equal(least, [np.inf, np.float32(1e30), -np.inf, np.nan])
    np.testing.assert_array_equal(relu, np.maximum(x, 0))
    np.testing.assert_array_equal(softmax[1], (x[1] == -1e30).astype(np.float32))
    assert np.isnan(softmax[[0, 2, 3]]).all()


def test_products_are_rounded_before_they_are_added() -> None:
    """NVRTC fuses none of them, though it fuses all that it may. Sums along an axis are fused."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
    from collage.backends.tvm_cuda_codegen.nvrtc import _STANDARD_HEADERS

    headers = [[text.encode() for text in side] for side in zip(*_STANDARD_HEADERS.items(), strict=True)]

    def build(e: Any, x: Any, y: Any) -> Any:
        return op.sqrt(e(op.subtract(e(op.multiply(x, x)), e(op.multiply(y, y)))))

    def instructions(lowered: LoweredKernel) -> str:
        (source,) = sources_of(lowered, "sm_90")
        _, program = nvrtc.nvrtcCreateProgram(
            source.text.encode(), b"kernel.cu", len(headers[0]), headers[1], headers[0]
        )
        options = [b"--gpu-architecture=compute_90", b"--device-int128"]
        nvrtc.nvrtcCompileProgram(program, len(options), options)
        _, size = nvrtc.nvrtcGetPTXSize(program)
        nvrtc.nvrtcGetPTX(program, text := bytearray(size))
        return text.decode()

    rounded = instructions(lower(function(build, f32(64), f32(64))))
    assert "mul.rn.f32" in rounded and "fma" not in rounded
    assert "fma.rn.f32" in instructions(lower(function(lambda e, x, y: op.matmul(x, y), f32(8, 8), f32(8, 8))))
    half = ((64,), "float16")
    (source,) = sources_of(lower(function(build, half, half)), "sm_90")
    assert source.text.count("__hmul_rn(") == 2
    assert compile_cubin(source.text, "sm_90")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_softplus_of_small_numbers(dtype: str, tmp_path: Path) -> None:
    """By log1p: it is exp(x) there, whose logarithm is not infinite."""
    pytest.importorskip("cuda.bindings.nvrtc")
    x = np.array([-80.0, -20.5, -17.0, -3.0, 0.0, 3.0, 17.0, 90.0, np.inf, -np.inf, np.nan], dtype)
    lowered = lower(function(lambda e, x: op.nn.softplus(x), (x.shape, dtype)))
    assert compile_kernel(lowered, "sm_90")
    threads = CpuThreads(tmp_path)
    (found,) = threads.run(threads.add(lowered), [x])
    wanted = np.array([np.log1p(np.exp(-abs(each))) + max(each, 0) for each in x.astype(np.float64)])
    wanted[-3:] = np.inf, 0, np.nan
    np.testing.assert_allclose(found, wanted.astype(dtype), rtol=1e-3 if dtype == "float16" else 1e-6)


def test_grids_that_no_gpu_has_are_left_to_another_schedule() -> None:
    """A grid has 65535 blocks along y and z at most, and rules for products have one for each of a batch."""
    lowered = lower(function(lambda e, x, y: op.matmul(x, y), f32(70000, 4, 8), f32(70000, 8, 4)))
    (source,) = sources_of(lowered, "sm_90")
    assert all(each.grid[0] < 1 << 31 and max(each.grid[1:]) < 1 << 16 for each in source.kernels)
    assert all(np.prod(each.grid) * np.prod(each.block) >= 70000 for each in source.kernels)


def test_buffers_between_kernels(tmp_path: Path) -> None:
    """What one kernel writes and the next one reads is memory of the artifact."""
    threads = CpuThreads(tmp_path)
    lowered = lower(function(lambda e, x: op.nn.max_pool2d(x, (3, 3), (1, 1), (1, 1)), f32(1, 4, 9, 9)))
    ready = threads.add(lowered)
    assert len(ready.launches) == 2
    assert [each.shape for each in ready.between] == [(1, 4, 9, 11)]
    x = draw(f32(1, 4, 9, 9))
    (found,) = threads.run(ready, [x])
    np.testing.assert_array_equal(found, np_windows(x, 3, 1, -np.inf).max((-2, -1)))


SUMS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "mean": (lambda x: op.mean(x, [1]), lambda x: x.mean(1)),
    "sum": (lambda x: op.sum(x, [1]), lambda x: x.sum(1)),
    "softmax": (op.nn.softmax, np_softmax),
    "product": (lambda x: op.matmul(x, op.permute_dims(x)), lambda x: x @ x.T),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_of_float16_are_float32(name: str, tmp_path: Path) -> None:
    """They are as near to sums of float64 as a result in float16 can be. Without it, products are not."""
    x = np.random.default_rng(6).uniform(0.1, 1.0, (3, 2000)).astype(np.float16) / np.float16(8)
    build, wanted = SUMS[name]
    expected = wanted(x.astype(np.float64))
    errors = []
    for number, operators in enumerate((WIDE_SUMS, {})):
        (folder := tmp_path / str(number)).mkdir()
        threads = CpuThreads(folder)
        given = function(lambda e, x: build(x), (x.shape, "float16"))
        (found,) = threads.run(threads.add(lower(given, None, operators)), [x])
        assert found.dtype == np.float16
        errors.append(float((np.abs(found - expected) / expected).max()))
    assert errors[0] < 2.0**-10, errors
    assert name != "product" or errors[1] > 1e-2, errors


# -- the backend -------------------------------------------------------------------------------------------


def chain() -> Subgraph:
    net = Net(18)
    x = net.input(4, 100)
    model = import_model(net.build(net.op("Softmax", net.op("Relu", x), axis=-1)))
    return Subgraph(model, tuple(range(len(model.graph.nodes))))


def test_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    backend = collage.default_registry()["tvm_cuda"]
    assert (backend.kind, backend.device) == (BackendKind.COMPILER, "cuda")
    assert not backend.available()
    subgraph, options = chain(), BuildOptions()
    assert backend.variants(subgraph, options) == (Variant((Storage("cuda"),), (Storage("cuda"),)),)
    artifact = backend.codegen(subgraph, options)
    found = unpack(artifact)
    assert pack(found) == artifact
    assert found.architecture.startswith("sm_")
    assert [each.shape for each in (*found.params, *found.outputs)] == [(4, 100)] * 2
    pretend(monkeypatch, no_driver)
    with pytest.raises(NoGpuError, match="there is no NVIDIA driver"):
        backend.load(artifact, options)
    pretend(monkeypatch, lambda name: Driver(1, capability=(8, 0)))
    with pytest.raises(UnsupportedError, match="compiled for sm_90, and NVIDIA Made-up 1 is sm_80"):
        backend.load(artifact, options)


def test_without_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(UnsupportedError, match=r"NVRTC is not installed: pip install 'collage-compiler\[gpu\]'"):
        TvmCuda().codegen(chain(), BuildOptions())


def test_artifacts_of_others_are_refused() -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    artifact = TvmCuda().codegen(chain(), BuildOptions())
    changes = {
        b'"architecture"': (b'"archaeologist"', "architecture"),
        b'"kind":"output","index":0': (b'"kind":"output","index":7', "takes buffers that there are not"),
        b'"cubin":0': (b'"cubin":3', "is in machine code that there is not"),
        b'"grid":[4,1,1]': (b'"grid":[4,70000,1]', "has grids of 4x70000x1 blocks"),
        b'"block":[256,1,1]': (b'"block":[256,9,1]', "has blocks of 256x9x1 threads"),
    }
    for old, (new, words) in changes.items():
        assert old in artifact
        head = artifact.replace(old, new)
        if len(new) != len(old):
            size = struct.unpack_from("<I", head, 4)[0] + len(new) - len(old)
            head = head[:4] + struct.pack("<I", size) + head[8:]
        with pytest.raises((ValueError, KeyError), match=words):
            unpack(head)
    with pytest.raises(ValueError, match="not a compiled TVM kernel for CUDA"):
        unpack(b"something else")
