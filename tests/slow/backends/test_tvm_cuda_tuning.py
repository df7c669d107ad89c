"""Schedules for NVIDIA GPUs that MetaSchedule finds: what they compute, and what a record of one may hold."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

pytest.importorskip("tvm")

from collage.backends.base import UnsupportedError
from collage.backends.tvm_codegen.lower import LoweredKernel, lower
from collage.backends.tvm_codegen.traces import GPU
from collage.backends.tvm_codegen.trials import Search
from collage.backends.tvm_codegen.tuned import RecordError, format_record, parse_record
from collage.backends.tvm_cuda import TUNED, TvmCuda
from collage.backends.tvm_cuda_codegen.artifact import unpack
from collage.backends.tvm_cuda_codegen.build import compile_kernel, sources_of
from collage.backends.tvm_cuda_codegen.schedule import cuda_target
from collage.backends.tvm_cuda_codegen.source import cuda_source
from collage.backends.tvm_cuda_codegen.tune import _Chance
from collage.backends.tvm_cuda_codegen.wide import WIDE_SUMS
from collage.errors import DatabaseError
from collage.frontend.model import import_model
from collage.frontend.subgraph import Subgraph
from collage.kernel.options import BuildOptions
from tests.compile.frontend.test_to_onnx import Net
from tests.helpers.cuda_on_cpu import CpuThreads

ARCHITECTURE = "sm_90"
TRIALS = 6


@dataclass(frozen=True)
class Tuned:
    """A network, its subgraph, and a trace for each function with a product, with what all trials' sources were."""

    net: Net
    outputs: tuple[str, ...]
    subgraph: Subgraph
    lowered: LoweredKernel
    traces: dict[str, Any]
    sources: dict[str, list[str]]

    @property
    def record(self) -> str:
        return format_record(self.traces)


def convolution(net: Net) -> str:
    value = net.op("Conv", net.input(1, 6, 9, 9), net.random(8, 6, 3, 3), net.random(8), pads=[1, 1, 1, 1])
    return net.op("Relu", value)


def grouped(net: Net) -> str:
    return net.op("Conv", net.input(2, 32, 15, 15), net.random(32, 1, 3, 3), group=32, strides=[2, 2])


def product(net: Net) -> str:
    return net.op(
        "Relu", net.op("Add", net.op("MatMul", net.input(24, 40), net.random(40, 32)), net.random(32))
    )


def batched(net: Net) -> str:
    return net.op("MatMul", net.input(3, 20, 16), net.input(3, 16, 28))


NETS: dict[str, Callable[[Net], str]] = {
    each.__name__: each for each in (convolution, grouped, product, batched)
}


@functools.cache
def tuned(name: str, half: bool = False) -> Tuned:
    """A search whose trials are never run: the last one counts as the fastest."""
    net = Net(18)
    output = NETS[name](net)
    model = import_model(net.build(output))
    subgraph = Subgraph(model, tuple(range(len(model.graph.nodes))))
    part = subgraph.to_relax()
    lowered = lower(part.function, part.prim_funcs, WIDE_SUMS)
    target, traces, sources = cuda_target(ARCHITECTURE), {}, {}
    for kernel, func in lowered.funcs.items():
        found: list[str] = []

        def seconds(scheduled: Any, kernel: str = kernel, found: list[str] = found) -> float | None:
            try:
                found.append(cuda_source(scheduled, kernel, target).text)
            except RuntimeError:  # TVM fails on some of its own schedules
                return None
            return 1.0 / len(found)

        search = Search(target, _Chance(0), GPU, least=4)
        best, traces[kernel] = search.best(func, seconds, TRIALS, time.monotonic() + 600)
        assert found and best == 1.0 / len(found), "trials of which code can be made"
        sources[kernel] = found
    return Tuned(net, (output,), subgraph, lowered, traces, sources)


@pytest.mark.parametrize("name", NETS)
def test_what_tuned_kernels_compute(name: str, tmp_path: Path) -> None:
    """Schedules with tiles, shared memory and fetches by all threads give what ONNX Runtime gives."""
    found = tuned(name)
    again = sources_of(found.lowered, ARCHITECTURE, parse_record(found.record, GPU))
    assert [each.text for each in again] == [texts[-1] for texts in found.sources.values()]
    assert all(len({*texts}) > 1 for texts in found.sources.values()), "trials differ"
    assert any("__shared__" in each.text for each in again) or name == "grouped"
    threads = CpuThreads(tmp_path)
    ready = threads.add(found.lowered, found.traces)
    rng = np.random.default_rng(3)
    feeds = {name: feed.draw(rng) for name, feed in found.net.feeds.items()}
    values = [feeds[found.subgraph.model.graph.values[value].name] for value in found.subgraph.inputs]
    (result,) = threads.run(ready, values)
    model = found.net.build(*found.outputs).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, feeds)
    np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NETS)
def test_nvrtc_compiles_tuned_kernels(name: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    found = tuned(name)
    artifact = unpack(compile_kernel(found.lowered, ARCHITECTURE, found.record))
    assert artifact.launches and all(each[:4] == b"\x7fELF" for each in artifact.cubins)
    assert compile_kernel(found.lowered, ARCHITECTURE) != compile_kernel(
        found.lowered, ARCHITECTURE, found.record
    )


def test_tuned_is_a_variant_of_its_own() -> None:
    """DLight's kernel stays beside it, under the key that it has without trials."""
    backend, subgraph = TvmCuda(), tuned("product").subgraph
    (usual,) = backend.variants(subgraph, BuildOptions())
    both = backend.variants(subgraph, BuildOptions(tune_trials=8))
    assert both == (usual, replace(usual, split=TUNED))
    options = [BuildOptions(tune_trials=8, variant=each) for each in both]
    assert [backend.settings(each) for each in options] == ["kernels 2", "8 trials"]
    assert backend.tune(subgraph, options[0]) == ""
    with pytest.raises(UnsupportedError, match="no tuned schedule"):
        backend.codegen(subgraph, options[1])


def _appended(*instruction: Any) -> Callable[[list[Any]], None]:
    return lambda instructions: instructions.append([*instruction])


def _annotated(key: str, value: Any) -> Callable[[list[Any]], None]:
    def change(instructions: list[Any]) -> None:
        loop = next(str(name) for i in reversed(instructions) for name in i[3] if str(name).startswith("l"))
        instructions.append(["Annotate", [loop, value], [key], []])

    return change


HOSTILE = {
    "code": _annotated("pragma_import_c", '"int f() {}"'),
    "text": _annotated("meta_schedule.cooperative_fetch", '"text"'),
    "object": _annotated("meta_schedule.cooperative_fetch", '{"root_index":0}'),
    "huge": _annotated("meta_schedule.thread_extent_high_inclusive", 1 << 40),
    "tensorize": _appended("Tensorize", ["l1", '"wmma"', 1], [], []),
    "axis": _appended("Bind", ["l1"], ["pipeIdx.x"], []),
    "no axis": _appended("Bind", ["l1"], [], []),
    "scope": _appended("CacheRead", ["b0", []], [0, "global.vtcm"], ["b999"]),
    "unsafe": _appended("UnsafeSetDType", ["b0", 0], ["int8"], []),
    "layout": _appended("TransformLayout", ["b0"], [0, 0, "{}", None, True], []),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_record_that_does_more_than_schedule_is_refused(change: Callable[[list[Any]], None]) -> None:
    """Records travel with databases, and TVM would do whatever they say."""
    record = json.loads(tuned("product").record)
    change(next(iter(record.values()))[0])
    with pytest.raises(RecordError):
        parse_record(json.dumps(record), GPU)


def test_a_record_of_another_kernel_is_refused() -> None:
    found = tuned("product")
    variant = TvmCuda().variants(found.subgraph, BuildOptions(tune_trials=2))[1]
    options = BuildOptions(tune_trials=2, variant=variant, tuning=tuned("convolution").record)
    with pytest.raises(DatabaseError, match="is not used"):
        TvmCuda().codegen(found.subgraph, options)


def test_records_of_gpus_are_none_of_cpus() -> None:
    with pytest.raises(RecordError):
        parse_record(tuned("product").record)
