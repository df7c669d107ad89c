"""TensorRT without a GPU: what the probe says, and our side of its interface.

The engine is a stand-in with the signatures of TensorRT's and CUDA's bindings, which runs the ONNX model that it was
given in ONNX Runtime. What TensorRT itself does is not tested here, nor anywhere: that takes an NVIDIA GPU.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import collage
from collage.backends import tensorrt
from collage.backends.base import BackendKind, UnsupportedError
from collage.backends.tensorrt import TensorRt
from collage.frontend.model import import_model
from collage.frontend.subgraph import Subgraph
from collage.kernel.buffers import aligned_array, aligned_copy
from collage.kernel.options import BuildOptions
from tests.cuda_driver import Driver, no_driver, pretend
from tests.models import conv_net, make_model

Installer = Callable[..., None]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installer:
    """Lets distributions look installed."""

    def install(**versions: str) -> None:
        for name, version in versions.items():
            folder = tmp_path / "site" / f"{name}-{version}.dist-info"
            folder.mkdir(parents=True)
            lines = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
            (folder / "METADATA").write_text(lines)
        monkeypatch.syspath_prepend(tmp_path / "site")

    return install


def test_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorrt, "_DISTRIBUTIONS", ("no-such-distribution",))
    probe = TensorRt().available()
    assert not probe
    assert probe.reason == "not installed: pip install 'collage[tensorrt]'; needs an NVIDIA GPU"


@pytest.mark.parametrize("distribution", ["tensorrt", "tensorrt_cu13", "tensorrt_cu12"])
def test_cuda_bindings_missing(
    installed: Installer, distribution: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(**{distribution: "11.4.0"})
    version = tensorrt._version
    monkeypatch.setattr(tensorrt, "_version", lambda name: "" if name == "cuda-bindings" else version(name))
    assert TensorRt().available().reason.startswith("cuda-bindings is missing: pip install")


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        (no_driver, "there is no NVIDIA driver (libcuda.so.1)"),
        (lambda name: Driver(0), "the NVIDIA driver finds no GPU"),
        (lambda name: Driver(1, problem=100), "the NVIDIA driver finds no GPU"),
    ],
)
def test_no_gpu(
    load: Callable[[str], Any], reason: str, installed: Installer, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tensorrt_cu13="11.4.0", cuda_bindings="13.3.1")
    pretend(monkeypatch, load)
    assert TensorRt().available().reason == f"{reason}; TensorRT runs on NVIDIA GPUs only"


def test_version_names_the_gpu(installed: Installer, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tensorrt_cu13="11.4.0", cuda_bindings="13.3.1")
    pretend(monkeypatch, lambda name: Driver(2))
    assert TensorRt().available().version == "11.4.0 on NVIDIA Made-up 1"


def test_registered_as_a_graph_engine() -> None:
    backend = collage.default_registry()["tensorrt"]
    assert backend.kind is BackendKind.ENGINE
    assert "does not know the operator domain com.example" in str(backend.accepts("com.example", "Op"))  # type: ignore[attr-defined]


class _Severity:
    INTERNAL_ERROR, ERROR, WARNING = range(3)


class _Logger(_Severity):
    def log(self, severity: Any, message: str) -> None:
        raise NotImplementedError


class _Dtype(SimpleNamespace):
    """DataType: has a name."""


_NAMES = {np.dtype(kind): name for name, kind in (("FLOAT", np.float32), ("INT64", np.int64))}


class Config:
    """IBuilderConfig."""

    def __init__(self) -> None:
        self.cache: Any = None
        self.cleared: list[str] = []

    def clear_flag(self, flag: str) -> None:
        self.cleared.append(flag)

    def create_timing_cache(self, data: bytes) -> Any:
        if data not in (b"", b"timed"):
            return None
        return SimpleNamespace(data=data, serialize=lambda: b"timed")

    def set_timing_cache(self, cache: Any, ignore_mismatch: bool) -> bool:
        self.cache = cache
        return True


class Builder:
    """Builder; the engine is the ONNX model with its tensors renamed. Keeps the configurations it was given."""

    configs: list[Config]

    def __init__(self, logger: _Logger) -> None:
        self.logger = logger

    def create_network(self, flags: int) -> Any:
        assert flags == 1 << 1  # strongly typed
        return SimpleNamespace(model=None)

    def create_builder_config(self) -> Config:
        self.configs.append(Config())
        return self.configs[-1]

    def build_serialized_network(self, network: Any, config: Config) -> bytes | None:
        assert config.cleared == ["TF32"]
        graph = network.model.graph
        if any(node.op_type == "Sin" for node in graph.node):
            self.logger.log(_Severity.WARNING, "not this")
            self.logger.log(_Severity.ERROR, "no tactic for Sin")
            return None
        for info, tensor in zip(graph.input, network.inputs, strict=True):
            graph.node.insert(0, onnx.helper.make_node("Identity", [tensor.name], [info.name]))
            info.name = tensor.name
        for info, tensor in zip(graph.output, network.outputs, strict=True):
            graph.node.append(onnx.helper.make_node("Identity", [info.name], [tensor.name]))
            info.name = tensor.name
        data: bytes = network.model.SerializeToString()
        return data


class Parser:
    """OnnxParser."""

    num_errors = 1

    def __init__(self, network: Any, logger: _Logger) -> None:
        self.network = network

    def parse(self, model: bytes) -> bool:
        proto = onnx.load_model_from_string(model)
        self.network.model = proto
        for what in ("input", "output"):
            tensors = [SimpleNamespace(name=info.name) for info in getattr(proto.graph, what)]
            setattr(self.network, f"{what}s", tensors)
            setattr(self.network, f"num_{what}s", len(tensors))
            setattr(self.network, f"get_{what}", tensors.__getitem__)
        return all(node.op_type != "Tan" for node in proto.graph.node)

    def get_error(self, index: int) -> Any:
        return SimpleNamespace(desc=lambda: "Tan is not known")


class Engine:
    """ICudaEngine."""

    def __init__(self, plan: bytes) -> None:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        self.session = ort.InferenceSession(plan, options, providers=["CPUExecutionProvider"])
        model = onnx.load_model_from_string(plan)
        self.infos = {info.name: info.type.tensor_type for info in (*model.graph.input, *model.graph.output)}

    def get_tensor_shape(self, name: str) -> list[int]:
        return [dim.dim_value for dim in self.infos[name].shape.dim]

    def get_tensor_dtype(self, name: str) -> _Dtype:
        return _Dtype(name=_NAMES[onnx.helper.tensor_dtype_to_np_dtype(self.infos[name].elem_type)])

    def get_tensor_location(self, name: str) -> str:
        return "DEVICE"

    def create_execution_context(self) -> Context:
        return Context(self)


class Context:
    """IExecutionContext on "device" memory."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.addresses: dict[str, int] = {}

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return True

    def execute_async_v3(self, stream: int) -> bool:
        assert stream == 7
        session = self.engine.session
        views = {name: self._view(name) for name in self.addresses}
        results = session.run(None, {each.name: views[each.name] for each in session.get_inputs()})
        for info, result in zip(session.get_outputs(), results, strict=True):
            views[info.name][...] = result
        return True

    def _view(self, name: str) -> np.ndarray:
        kind = onnx.helper.tensor_dtype_to_np_dtype(self.engine.infos[name].elem_type)
        shape = self.engine.get_tensor_shape(name)
        size = int(np.prod(shape)) * kind.itemsize
        raw = (ctypes.c_char * size).from_address(self.addresses[name])
        return np.frombuffer(raw, kind).reshape(shape)


class Memory:
    """CUDA's runtime on the host's memory; knows what is allocated."""

    def __init__(self) -> None:
        self.blocks: dict[int, Any] = {}
        self.streams = 0

    def malloc(self, size: int) -> tuple[int, int]:
        block = ctypes.create_string_buffer(size)
        self.blocks[ctypes.addressof(block)] = block
        return 0, ctypes.addressof(block)

    def free(self, address: int) -> tuple[int]:
        del self.blocks[address]
        return (0,)

    def copy(self, target: int, source: int, size: int, kind: str, stream: int) -> tuple[int]:
        device = target if kind == "to device" else source
        assert device in self.blocks
        assert stream == 7
        ctypes.memmove(target, source, size)
        return (0,)

    def stream(self) -> tuple[int, int]:
        self.streams += 1
        return 0, 7

    def destroy(self, stream: int) -> tuple[int]:
        self.streams -= 1
        return (0,)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Memory:
    """Puts the stand-ins in the place of ``tensorrt`` and ``cuda.bindings``, and the cache folder in ours."""
    memory = Memory()
    trt: Any = ModuleType("tensorrt")
    trt.__version__ = "11.4.0"
    trt.ILogger, trt.Builder, trt.OnnxParser = _Logger, Builder, Parser
    trt.NetworkDefinitionCreationFlag = SimpleNamespace(STRONGLY_TYPED=1)
    trt.BuilderFlag = SimpleNamespace(TF32="TF32")
    trt.TensorLocation = SimpleNamespace(DEVICE="DEVICE", HOST="HOST")
    trt.Runtime = lambda logger: SimpleNamespace(deserialize_cuda_engine=Engine)
    runtime: Any = ModuleType("cuda.bindings.runtime")
    runtime.cudaMalloc, runtime.cudaFree, runtime.cudaMemcpyAsync = memory.malloc, memory.free, memory.copy
    runtime.cudaStreamCreate, runtime.cudaStreamDestroy = memory.stream, memory.destroy
    runtime.cudaStreamSynchronize = lambda stream: (0,)
    runtime.cudaError_t = SimpleNamespace(cudaSuccess=0)
    runtime.cudaGetErrorString = lambda error: (0, b"out of memory")
    runtime.cudaMemcpyKind = SimpleNamespace(
        cudaMemcpyHostToDevice="to device", cudaMemcpyDeviceToHost="to host"
    )
    bindings: Any = ModuleType("cuda.bindings")
    bindings.runtime = runtime
    modules = {"tensorrt": trt, "cuda": ModuleType("cuda"), "cuda.bindings": bindings}
    for name, module in {**modules, "cuda.bindings.runtime": runtime}.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(tensorrt, "_gpu", lambda: "NVIDIA Made-up 1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Builder.configs = []
    return memory


def _whole(model: onnx.ModelProto) -> Subgraph:
    imported = import_model(model)
    return Subgraph(imported, tuple(range(len(imported.graph.nodes))))


def _elementwise(*ops: str) -> Subgraph:
    names = ["x", *(f"v{i}" for i in range(len(ops) - 1)), "y"]
    nodes = [onnx.helper.make_node(op, [names[i]], [names[i + 1]]) for i, op in enumerate(ops)]
    return _whole(make_model(nodes, {"x": [4, 8]}, {"y": [4, 8]}))


def _run(subgraph: Subgraph, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    backend, options = TensorRt(), BuildOptions()
    kernel = backend.load(backend.codegen(subgraph, options), options)
    outputs = [aligned_array(kind) for kind in subgraph.output_types]
    call = kernel.bind([aligned_copy(array) for array in arrays], outputs)
    call()
    call()
    return [np.array(each) for each in outputs]


def test_runs_a_network_and_frees_its_memory(memory: Memory) -> None:
    model = conv_net()
    x = np.random.default_rng(0).standard_normal((1, 3, 16, 16)).astype(np.float32)
    (actual,) = _run(_whole(model), [x])
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(actual, session.run(None, {"x": x})[0], rtol=1e-4, atol=1e-5)
    gc.collect()
    assert (memory.blocks, memory.streams) == ({}, 0)


def test_inputs_and_outputs_keep_their_order(memory: Memory) -> None:
    nodes = [onnx.helper.make_node("Sub", ["a", "b"], ["d"]), onnx.helper.make_node("Exp", ["b"], ["e"])]
    subgraph = _whole(make_model(nodes, {"a": [2, 3], "b": [2, 3]}, {"d": [2, 3], "e": [2, 3]}))
    a, b = np.full((2, 3), 5, np.float32), np.full((2, 3), 2, np.float32)
    order = [subgraph.model.onnx_values[name] for name in ("a", "b", "d", "e")]
    arrays = dict(zip(order, (a, b, a - b, np.exp(b)), strict=True))
    for value, actual in zip(
        subgraph.outputs, _run(subgraph, [arrays[v] for v in subgraph.inputs]), strict=True
    ):
        np.testing.assert_allclose(actual, arrays[value], rtol=1e-6)


def test_what_tensorrt_refuses_is_a_rejection_with_its_words(memory: Memory) -> None:
    for op, words in (("Tan", "parser: Tan is not known"), ("Sin", "builds no engine: no tactic for Sin")):
        with pytest.raises(UnsupportedError, match=words):
            TensorRt().codegen(_elementwise(op, "Relu"), BuildOptions())


def test_cuda_errors_are_told(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["cuda.bindings.runtime"], "cudaMalloc", lambda size: (2, None))
    with pytest.raises(RuntimeError, match="CUDA: out of memory"):
        _run(_elementwise("Exp"), [np.zeros((4, 8), np.float32)])
    gc.collect()
    assert (memory.blocks, memory.streams) == ({}, 0)


def test_tensors_that_are_not_as_expected_are_refused(memory: Memory) -> None:
    backend, options = TensorRt(), BuildOptions()
    kernel = backend.load(backend.codegen(_elementwise("Exp"), options), options)
    right, narrow = np.zeros((4, 8), np.float32), np.zeros((4, 7), np.float32)
    with pytest.raises(UnsupportedError, match=r"input0 the shape \(4, 8\), not \(4, 7\)"):
        kernel.bind([narrow], [right])
    with pytest.raises(UnsupportedError, match="output0 the type FLOAT, not float64"):
        kernel.bind([right], [right.astype(np.float64)])


def test_timings_are_kept_between_builds(memory: Memory, tmp_path: Path) -> None:
    for _ in range(2):
        TensorRt().codegen(_elementwise("Exp"), BuildOptions())
    (file,) = (tmp_path / "cache" / "collage").iterdir()
    assert file.name == "tensorrt-11.4.0-NVIDIA-Made-up-1.timings"
    assert [config.cache.data for config in Builder.configs] == [b"", b"timed"]
    file.write_bytes(b"damaged")
    TensorRt().codegen(_elementwise("Exp"), BuildOptions())
    assert Builder.configs[-1].cache.data == b""
    assert file.read_bytes() == b"timed"
