"""Engines of others for whole models on a GPU: what they need, and their kernels and modules on the CPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import collage
from collage.backends import onnxruntime_cuda, torch_cuda
from collage.backends.base import Availability, UnsupportedError
from collage.backends.cuda_engine import CudaEngine
from collage.backends.onnxruntime_cuda import OnnxRuntimeCuda
from collage.backends.torch_cuda import TorchCuda
from collage.frontend.model import import_model
from collage.frontend.subgraph import Subgraph
from collage.graph.dataflow import Array
from collage.kernel.buffers import aligned_array, aligned_copy
from collage.kernel.options import BuildOptions
from tests.compile.frontend.test_to_onnx import Net
from tests.compile.frontend.test_to_onnx import run as run_onnx
from tests.helpers.backends.engines_on_cpu import OnnxRuntimeOnCpu, TorchOnCpu
from tests.helpers.cuda_driver import Driver, no_driver, pretend
from tests.helpers.models import conv_net, elementwise_net

ENGINES = [TorchCuda, OnnxRuntimeCuda]


def image(seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((1, 3, 16, 16)).astype(np.float32)


def expected(model: onnx.ModelProto, x: Array) -> Array:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


def ran(engine: CudaEngine, model: onnx.ModelProto, options: BuildOptions, x: Array) -> list[Array]:
    """What the engine's kernel makes of the input, in two runs of each of two bindings."""
    kernel = engine.load(engine.codegen_model(model, options), options)
    imported = import_model(model)
    whole = Subgraph(imported, tuple(range(len(imported.graph.nodes))))
    found = []
    for _ in range(2):
        given, made = aligned_copy(x), [aligned_array(kind) for kind in whole.output_types]
        call = kernel.bind([given], made)
        for _ in range(2):
            made[0].fill(np.nan)
            call()
            found.append(np.array(made[0]))
    return found


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("load", "reason"),
    [
        (no_driver, "there is no NVIDIA driver (libcuda.so.1)"),
        (lambda name: Driver(1, version=12080), "the NVIDIA driver is for CUDA 12.8"),
    ],
)
def test_without_a_gpu(
    engine: type[CudaEngine], load: Callable[[str], Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, load)
    found = engine().available()
    assert not found and found.reason.startswith(f"{reason}; it needs an NVIDIA GPU")
    assert f"pip install 'collage-compiler[{engine.extra}]'" in found.reason and "\n" not in found.reason
    assert ("has never run on a GPU" in found.reason) == (engine is OnnxRuntimeCuda)


def test_a_pytorch_without_cuda_and_one_with_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretend(monkeypatch, lambda name: Driver(1))
    monkeypatch.setattr(torch_cuda.metadata, "version", lambda name: "2.11.0")
    spec = type("Spec", (), {"submodule_search_locations": [str(tmp_path)]})
    monkeypatch.setattr(torch_cuda, "find_spec", lambda name: spec)
    version = tmp_path / "version.py"
    version.write_text("__version__ = '2.11.0'\ncuda: Optional[str] = None\n")
    assert TorchCuda().available().reason.startswith("PyTorch 2.11.0 computes on the CPU only: install one")
    for line in ("cuda: Optional[str] = '13.0'", "cuda = '13.0'"):
        version.write_text(f"__version__ = '2.11.0'\n{line}\n")
        assert TorchCuda().available() == Availability("2.11.0, NVIDIA Made-up 1, CUDA 13.0")


def test_an_onnxruntime_without_cuda_and_one_with_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretend(monkeypatch, lambda name: Driver(1))
    assert OnnxRuntimeCuda().available().reason.startswith("not installed: pip install")
    monkeypatch.setattr(onnxruntime_cuda.metadata, "version", lambda name: "1.31.1")
    spec = type("Spec", (), {"submodule_search_locations": [str(tmp_path)]})
    monkeypatch.setattr(onnxruntime_cuda, "find_spec", lambda name: spec)
    assert "has taken the place of onnxruntime-gpu" in OnnxRuntimeCuda().available().reason
    (tmp_path / "capi").mkdir()
    (tmp_path / "capi" / "libonnxruntime_providers_cuda.so").touch()
    assert OnnxRuntimeCuda().available() == Availability("1.31.1, NVIDIA Made-up 1, CUDA 13.0")


def test_a_provider_that_is_not_loaded_is_told() -> None:
    """ONNX Runtime takes the CPU's without a word."""
    with (
        pytest.warns(UserWarning, match="CUDAExecutionProvider"),
        pytest.raises(UnsupportedError, match="does not load its CUDAExecutionProvider"),
    ):
        OnnxRuntimeCuda().opened(conv_net().SerializeToString(), BuildOptions(), 0)


def test_onnxruntime_on_given_arrays() -> None:
    for found in ran(OnnxRuntimeOnCpu(), conv_net(), BuildOptions(), image()):
        np.testing.assert_allclose(found, expected(conv_net(), image()), rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch itself
@pytest.mark.parametrize("profile", TorchCuda().profiles(BuildOptions()))
def test_pytorch_on_given_arrays(profile: str) -> None:
    pytest.importorskip("torch")
    options = BuildOptions(profile=profile)
    for found in ran(TorchOnCpu(), conv_net(), options, image()):
        np.testing.assert_allclose(found, expected(conv_net(), image()), rtol=1e-4, atol=1e-5)


CHANGES = {
    "nothing": "",
    "all by the new interface": "torch.backends.fp32_precision = 'tf32'",
    "convolutions by the new interface": "torch.backends.cudnn.conv.fp32_precision = 'ieee'",
    "products by the old interface": "torch.set_float32_matmul_precision('high')",
    "sums": "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = (False, False)",
}
SETTINGS = """
import torch
from collage.backends.torch_graph.kernel import exactly

def told(read):
    try:
        return read()
    except RuntimeError:
        return "PyTorch does not tell"

def settings():
    backends, products, convolutions = torch.backends, torch.backends.cuda.matmul, torch.backends.cudnn
    new = [convolutions, convolutions.conv, convolutions.rnn, products, backends, backends.mkldnn.matmul]
    old = [torch.get_float32_matmul_precision, lambda: convolutions.allow_tf32, lambda: products.allow_tf32]
    sums = ["allow_fp16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction_split_k"]
    return [
        *(each.fp32_precision for each in new), *map(told, old), convolutions.benchmark, torch.is_grad_enabled(),
        *(getattr(products, each) for each in sums),
    ]

CHANGE
before = settings()
with exactly():
    assert not torch.backends.cuda.matmul.allow_tf32 and not torch.backends.cudnn.allow_tf32
    assert torch.backends.cuda.matmul.fp32_precision == "ieee"
    assert torch.backends.cudnn.conv.fp32_precision != "tf32"
    assert not torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
    assert torch.backends.cudnn.benchmark and not torch.is_grad_enabled()
    torch.nn.functional.conv2d(torch.ones(1, 1, 4, 4), torch.ones(1, 1, 3, 3))
after = settings()
assert before == after, (before, after)
"""


@pytest.mark.parametrize("change", CHANGES)
def test_pytorch_leaves_its_settings_as_they_are(change: str) -> None:
    """Whichever of its interfaces somebody has used before. They are those of a process, so each has its own here."""
    pytest.importorskip("torch")
    code = SETTINGS.replace("CHANGE", CHANGES[change], 1)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr


def test_what_pytorchs_compiler_would_change() -> None:
    """It is not compiled, and PyTorch's own kernels are right."""
    pytest.importorskip("torch")
    net = Net(18)
    model = net.build(net.op("Floor", net.op("Div", net.input(256), net.weight(np.float32(41)))))
    options = BuildOptions(profile="inductor")
    with pytest.raises(UnsupportedError, match=r"PyTorch's compiler may .* decides by the last bit"):
        TorchOnCpu().codegen_model(model, options)
    x = np.arange(-128, 128, dtype=np.float32) * np.float32(4.1)
    (wanted,) = run_onnx(model, [x], False)
    for found in ran(TorchOnCpu(), model, BuildOptions(), x):
        np.testing.assert_array_equal(found, wanted)


def test_onnxruntime_divides_where_quotients_are_rounded() -> None:
    """1 / 41 * 41 is less than 1, and 41 / 41 is not."""
    x = np.arange(1, 257, dtype=np.float32)
    net = Net(18)
    given = net.input(256)
    model = net.build(net.op("Floor", net.op("Mul", net.op("Div", net.weight(np.float32(1)), given), given)))
    (wanted,) = run_onnx(model, [x], False)
    for found in ran(OnnxRuntimeOnCpu(), model, BuildOptions(), x):
        np.testing.assert_array_equal(found, wanted)
    session = OnnxRuntimeOnCpu().session(model.SerializeToString(), BuildOptions())
    np.testing.assert_array_equal(session.run([x])[0], wanted)


def test_sessions_take_values_of_the_host() -> None:
    pytest.importorskip("torch")
    model = conv_net()
    for engine in (TorchOnCpu(), OnnxRuntimeOnCpu()):
        (found,) = engine.session(model.SerializeToString(), BuildOptions()).run([image()])
        np.testing.assert_allclose(found, expected(model, image()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("refused", [False, True])
def test_pytorch_captures_its_second_run(
    refused: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The calls of PyTorch's interface for streams and graphs, in order, with these replaced."""
    torch = pytest.importorskip("torch")
    from collage.backends.torch_graph.kernel import _OnGpu

    happened: list[str] = []

    @contextmanager
    def graph(made: Any, *, stream: Any, capture_error_mode: str) -> Iterator[None]:
        happened.append(f"capture on {stream}")
        if refused:
            raise RuntimeError("operation not permitted")
        yield

    made = type("Graph", (), {"replay": lambda self: happened.append("replay")})
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda address: f"stream {address}")
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", made)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    call: Any = _OnGpu(None, lambda *tensors: happened.append("run"), ())  # type: ignore[arg-type]
    for _ in range(3):
        call.enqueue(7)
    if refused:
        assert happened == ["run", "capture on stream 7", "run", "run"]
        assert "enqueued one by one: operation not permitted" in caplog.text
    else:
        assert happened == ["run", "capture on stream 7", "run", "replay", "replay"]


def test_a_compile_hands_them_over(tmp_path: Path) -> None:
    """Each profile is measured on the whole model, the module runs from a file, too, and nothing is measured twice."""
    pytest.importorskip("torch")
    x = np.linspace(-2, 2, 256, dtype=np.float32).reshape(4, 64)
    registry = collage.builtin_registry(with_entry_points=False)
    for engine in (TorchOnCpu(), OnnxRuntimeOnCpu()):
        registry.register(engine)
    model, names = elementwise_net(), ["torch_on_cpu", "onnxruntime_on_cpu", "onnxruntime"]
    common: dict[str, Any] = {
        "registry": registry,
        "progress": False,
        "threads": 1,
        "db": tmp_path / "db.sqlite",
    }
    module = collage.compile(model, backends=names, **common)
    assert {each.backend for each in module.program.executed} <= {*names}
    np.testing.assert_allclose(module(x), expected(model, x), rtol=1e-4, atol=1e-5)
    timed = {each.profile for each in module.report.candidates if each.backend == "torch_on_cpu" and each.cost_us}
    assert timed == {"", "channels last", "inductor"}
    module.save(tmp_path / "m.collage")
    again = collage.load(tmp_path / "m.collage", registry=registry)
    np.testing.assert_array_equal(again(x[::-1].copy()), module(x[::-1].copy()))
    assert collage.compile(model, backends=names, **common).report.measurements_made == 0
