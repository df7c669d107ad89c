"""Whole models on a GPU that stands in for a real one: compiled, run, saved, loaded, and compared with ONNX Runtime.

The stand-ins for NVIDIA's libraries are in ``tests/helpers/cuda_standin``. Everything else is what runs on a real GPU,
in processes of their own.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import collage
from collage.check.spent import AHEAD
from collage.core.machine_lock import LOCK_VARIABLE
from collage.errors import CollageError
from collage.kernel.target import usable_cores
from scripts.lib.gpu.half import in_half
from tests.compile.frontend.test_to_onnx import Net
from tests.helpers.cuda_processes import Gpu

pytest.importorskip("cuda.bindings.nvrtc")

COMPILE = """
import json, sys
import numpy as np, collage
from collage.measure import measurer
measurer._AHEAD_S = 1.0  # the models of these tests have few kernels
model, db, out, options = sys.argv[1:]
module = collage.compile(model, db=db, progress=False, **json.loads(options))
module.save(out)
inputs = dict(np.load(model + ".npz"))
for _ in range(4):
    outputs = module.run(inputs)
np.savez(out + ".npz", **outputs)
print(json.dumps(dict(module.report.spent_s)))
print(json.dumps([[r.backend, list(r.ops), r.layout] for r in module.program.launches]))
"""

LOAD = """
import sys
import numpy as np, collage
path, feeds, out = sys.argv[1:]
try:
    module = collage.load(path, strict=True)
except collage.CollageError as error:
    print(error)
    sys.exit(3)
inputs = dict(np.load(feeds))
for _ in range(3):
    outputs = module.run(inputs)
odd = {name: np.where(value > 0.5, np.nan, value) for name, value in inputs.items()}
np.savez(out, **outputs, **{"odd " + name: value for name, value in module.run(odd).items()})
"""

STREAMS = """
import sys
import numpy as np, collage
from scripts.lib.gpu.streams import compare_streams
path, feeds = sys.argv[1:]
module = collage.load(path)
found = compare_streams(module, list(dict(np.load(feeds)).values()), rounds=2)
assert {"one stream", "nimble", "opara"} <= found["us"].keys(), found
assert max(found["error"].values()) == 0, found
assert found["about"]["nimble"]["streams"] >= 2, found
"""

CORRUPT = """
from collage.core.cuda_driver import CudaError, lost_context
from scripts.lib.gpu.checks import memory, scans
memory()
assert not lost_context()
for check in (scans, memory):
    try:
        check()
    except CudaError as error:
        print(error)
print(lost_context())
"""


@dataclass(frozen=True)
class Compiled:
    """A model that has been compiled for the stand-in."""

    folder: Path
    launches: list[tuple[str, list[str], str]]
    spent_s: dict[str, float] = field(default_factory=dict)

    @property
    def feeds(self) -> str:
        return str(self.folder / "model.onnx.npz")

    def inputs(self) -> dict[str, Any]:
        return dict(np.load(self.feeds))

    def expected(self, inputs: dict[str, Any]) -> dict[str, Any]:
        session = onnxruntime.InferenceSession(str(self.folder / "model.onnx"), providers=["CPUExecutionProvider"])
        names = [each.name for each in session.get_outputs()]
        return dict(zip(names, session.run(None, inputs), strict=True))


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Gpu:
    return Gpu.build(tmp_path_factory.mktemp("gpu"), "libcublasLt.so.13", "libcudnn.so.9")


@pytest.fixture(scope="module")
def compiled(gpu: Gpu, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """Two branches of products and functions, which end in a sum and a softmax, and a second output."""
    folder = tmp_path_factory.mktemp("model")
    net = Net(18)
    x = net.input(4, 8)
    left = net.op("Relu", net.op("Add", net.op("MatMul", x, net.random(8, 16)), net.random(16)))
    right = net.op("Tanh", net.op("MatMul", x, net.random(8, 16)))
    whole = net.op("Mul", net.op("Add", left, right), net.random(16))
    outputs = net.op("Softmax", whole, axis=-1), net.op("ReduceMax", right, keepdims=0)
    onnx.save(net.build(*outputs), folder / "model.onnx")
    rng = np.random.default_rng(1)
    np.savez(folder / "model.onnx.npz", **{name: feed.draw(rng) for name, feed in net.feeds.items()})
    options = {"device": "cuda", "backends": ["tvm_cuda", "cublas"], "threads": 1}
    paths = [str(folder / name) for name in ("model.onnx", "db.sqlite", "out.collage")]
    lock = {LOCK_VARIABLE: str(folder / "lock")}  # processes that build ahead stop by it
    said = gpu.run(COMPILE, *paths, json.dumps(options), **lock)
    spent, launches = map(json.loads, said.splitlines()[-2:])
    return Compiled(folder, launches, spent)


def test_a_model_compiles_and_runs(compiled: Compiled) -> None:
    assert {backend for backend, *_ in compiled.launches} <= {"tvm_cuda", "cublas"}
    assert compiled.launches[0][2] == "plain -> cuda:plain"
    assert compiled.launches[-1][2] == "cuda:plain -> plain"
    for name, wanted in compiled.expected(compiled.inputs()).items():
        found = np.load(compiled.folder / "out.collage.npz")[name]
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_kernels_of_tvm_are_built_in_another_process(compiled: Compiled) -> None:
    if usable_cores() < 2:
        pytest.skip("there is no core for it")
    assert compiled.spent_s[AHEAD] > 0


def test_little_time_is_enough_for_a_placement_on_the_gpu(gpu: Gpu, compiled: Compiled, tmp_path: Path) -> None:
    """No engine runs the whole model on the GPU, so few candidates are measured, and the copies to it and back."""
    chosen = {"device": "cuda", "backends": ["tvm_cuda", "cublas"], "threads": 1, "budget_s": 0.5}
    paths = [str(each) for each in (compiled.folder / "model.onnx", tmp_path / "db.sqlite", tmp_path / "out")]
    launches = json.loads(gpu.run(COMPILE, *paths, json.dumps(chosen)).splitlines()[-1])
    assert launches[0][2] == "plain -> cuda:plain"
    assert launches[-1][2] == "cuda:plain -> plain"
    assert {backend for backend, *_ in launches} <= {"tvm_cuda", "cublas"}
    found = np.load(f"{tmp_path / 'out'}.npz")
    for name, wanted in compiled.expected(compiled.inputs()).items():
        np.testing.assert_allclose(found[name], wanted, rtol=1e-5, atol=1e-6)
    assert 0 < _kernels_in(tmp_path / "db.sqlite") < _kernels_in(compiled.folder / "db.sqlite")


def _kernels_in(path: Path) -> int:
    found: int = sqlite3.connect(path).execute("SELECT COUNT(*) FROM kernels").fetchone()[0]
    return found


def test_both_backends_are_measured_and_right(compiled: Compiled) -> None:
    rows = sqlite3.connect(compiled.folder / "db.sqlite").execute(
        "SELECT backend, backend_version, settings, median_us, message FROM kernels"
    )
    found = list(rows)
    measured = {(backend, settings) for backend, _, settings, us, _ in found if us is not None}
    for algorithm in (1, 2):
        assert ("cublas", f"[cuda:plain -> cuda:plain; algorithm {algorithm}] ") in measured
    assert ("tvm_cuda", "[cuda:plain -> cuda:plain; ] kernels 2") in measured
    assert all(version.endswith("Stand-in GPU, CUDA 13.0") for _, version, *_ in found)
    rejected = {message for *_, us, message in found if us is None}
    assert rejected <= {"cuBLASLt offers 2 algorithms for this product", None}


def test_the_file_in_other_processes(gpu: Gpu, compiled: Compiled) -> None:
    """It runs in another one, with NaN in its inputs, too, which a scan on the GPU finds where kernels need it."""
    path = str(compiled.folder / "out.collage")
    gpu.run(LOAD, path, compiled.feeds, str(compiled.folder / "again.npz"))
    found, inputs = np.load(compiled.folder / "again.npz"), compiled.inputs()
    odd = {name: np.where(value > 0.5, np.float32("nan"), value) for name, value in inputs.items()}
    for name, wanted in compiled.expected(inputs).items():
        np.testing.assert_allclose(found[name], wanted, rtol=1e-5, atol=1e-6)
    for name, wanted in compiled.expected(odd).items():
        np.testing.assert_allclose(found[f"odd {name}"], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"COLLAGE_STANDIN_NAME": "Another GPU"}, "Another GPU"),
        (
            {"COLLAGE_STANDIN_SM": "80"},
            "it was compiled for sm_90, and Stand-in GPU is sm_80: compile the model again",
        ),
        (
            {"COLLAGE_STANDIN_MIB": "0"},
            "out of memory of the GPU: 0 MiB wanted, 0 MiB free; end what else runs there",
        ),
        ({"COLLAGE_STANDIN_CUDA": "12080"}, "the NVIDIA driver is for CUDA 12.8; it needs"),
    ],
)
def test_a_file_that_cannot_be_loaded(gpu: Gpu, compiled: Compiled, settings: dict[str, str], words: str) -> None:
    done = gpu.attempt(LOAD, str(compiled.folder / "out.collage"), compiled.feeds, "none", **settings)
    assert (done.returncode, len(done.stdout.splitlines())) == (3, 1), done.stderr
    assert words in done.stdout


def test_a_file_without_a_gpu(compiled: Compiled) -> None:
    with pytest.raises(CollageError, match=r"tvm_cuda|cublas") as raised:
        collage.load(compiled.folder / "out.collage", strict=True)
    assert "\n" not in str(raised.value)


def test_streams(gpu: Gpu, compiled: Compiled) -> None:
    """The launches of the module on several streams, in an odd order, give the same numbers as on one."""
    gpu.run(STREAMS, str(compiled.folder / "out.collage"), compiled.feeds)


def test_convolutions_within_a_tolerance(gpu: Gpu, tmp_path: Path) -> None:
    """Values take other formats and precisions on the GPU, and the module stays within the tolerance."""
    net = Net(18)
    value = net.op("Relu", net.op("Conv", net.input(1, 4, 6, 6), net.random(8, 4, 3, 3), pads=[1, 1, 1, 1]))
    onnx.save(net.build(value), tmp_path / "model.onnx")
    feeds = {name: feed.draw(np.random.default_rng(2)) for name, feed in net.feeds.items()}
    np.savez(tmp_path / "model.onnx.npz", **feeds)
    options = {"device": "cuda", "backends": ["cudnn"], "threads": 1, "tolerance": 2e-2}
    paths = [str(tmp_path / name) for name in ("model.onnx", "db.sqlite", "out.collage")]
    said = gpu.run(COMPILE, *paths, json.dumps(options))
    launches = json.loads(said.splitlines()[-1])
    assert "cudnn" in {backend for backend, *_ in launches}
    made = Compiled(tmp_path, launches)
    for name, wanted in made.expected(feeds).items():
        found = np.load(tmp_path / "out.collage.npz")[name]
        assert np.abs(found - wanted).max() <= 2e-2 * np.abs(wanted).max()
    rows = sqlite3.connect(tmp_path / "db.sqlite").execute("SELECT backend, settings, median_us FROM kernels")
    measured = {settings for backend, settings, us in rows if backend == "cudnn" and us is not None}
    for words in ("[cuda:channels-last -> cuda:channels-last; plan 1] ", "in tf32", "in bf16"):
        assert any(words in each for each in measured), (words, measured)
    if find_spec("nvidia.cudnn") is None:  # on a machine with a GPU and without the library it is one line
        (tmp_path / "gpu").mkdir()
        bare = Gpu.build(tmp_path / "gpu")
        done = bare.attempt(LOAD, paths[2], str(tmp_path / "model.onnx.npz"), "none")
        assert (done.returncode, len(done.stdout.splitlines())) == (3, 1), done.stderr
        assert "pip install 'collage-compiler[cuda]'" in done.stdout and "cudnn" in done.stdout, done.stdout


def _small(net: Net, *shape: int) -> str:
    """Weights that keep results near 1, where a softmax is not moved by a last bit of float16."""
    return net.weight(np.random.default_rng(len(shape)).normal(0, 0.1, shape).astype(np.float32))


@pytest.fixture(scope="module")
def halves(gpu: Gpu, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """A network in float16, of what each backend for GPUs has: convolution, pooling, product, softmax and others."""
    folder = tmp_path_factory.mktemp("halves")
    net = Net(18)
    pads = [1, 1, 1, 1]
    value = net.op("Conv", net.input(1, 4, 6, 6), _small(net, 8, 4, 3, 3), net.random(8), pads=pads)
    value = net.op("MaxPool", net.op("Relu", value), kernel_shape=[2, 2], strides=[2, 2])
    value = net.op("MatMul", net.op("Reshape", value, net.ints(8, 9)), _small(net, 9, 16))
    value = net.op("Relu", net.op("Add", value, net.random(16)))
    onnx.save(in_half(net.build(net.op("Softmax", value, axis=-1))), folder / "model.onnx")
    rng = np.random.default_rng(3)
    feeds = {name: feed.draw(rng).astype(np.float16) for name, feed in net.feeds.items()}
    np.savez(folder / "model.onnx.npz", **feeds)
    options = {"device": "cuda", "backends": ["cudnn", "cublas", "tvm_cuda"], "threads": 1}
    paths = [str(folder / name) for name in ("model.onnx", "db.sqlite", "out.collage")]
    said = gpu.run(COMPILE, *paths, json.dumps(options))
    spent, launches = map(json.loads, said.splitlines()[-2:])
    return Compiled(folder, launches, spent)


def test_a_model_in_float16(gpu: Gpu, halves: Compiled) -> None:
    """It is compiled, run, saved, and run in another process, with values in float16 all the way."""
    assert {backend for backend, *_ in halves.launches} <= {"cudnn", "cublas", "tvm_cuda"}
    assert not [layout for *_, layout in halves.launches if "fp16" in layout]
    assert not [ops for _, ops, _ in halves.launches if "astype" in ops], "nothing is float32 on the way"
    (wanted,) = halves.expected(halves.inputs()).values()
    gpu.run(LOAD, str(halves.folder / "out.collage"), halves.feeds, str(halves.folder / "again.npz"))
    for name in ("out.collage.npz", "again.npz"):
        found = next(iter(np.load(halves.folder / name).values()))
        assert found.dtype == np.float16
        assert np.abs(found.astype(np.float64) - wanted).max() <= 4e-3 * np.abs(wanted).max()
    rows = sqlite3.connect(halves.folder / "db.sqlite").execute(
        "SELECT backend, settings FROM kernels WHERE median_us IS NOT NULL"
    )
    assert {
        ("cublas", "[cuda:plain -> cuda:plain; wide sums, algorithm 1] "),
        ("cudnn", "[cuda:plain -> cuda:plain; plan 1] "),
        ("cudnn", "[cuda:channels-last -> cuda:channels-last; plan 1] "),
        ("tvm_cuda", "[cuda:plain -> cuda:plain; ] kernels 2"),
    } <= {*rows}


MASKED = """
import sys
import numpy as np, onnxruntime, collage
folder = sys.argv[1]
session = onnxruntime.InferenceSession(folder + "/model.onnx", providers=["CPUExecutionProvider"])
options = {"device": "cuda", "backends": ["tvm_cuda", "cublas"], "threads": 1}
module = collage.compile(folder + "/model.onnx", db=folder + "/db", progress=False, **options)
(copy,) = [each for each in module.program.regions if each.layout == "cuda:plain -> plain"]
assert copy.scans == copy.inputs, copy
for mask in ([1] * 16, [0] * 8 + [1] * 8, [50] * 16, [1, -300] * 8, [100_000, -5] * 8):
    given = {
        "x1": np.random.default_rng(2).normal(size=(8, 16)).astype(np.float16),
        "x0": np.array([mask], np.int64),
    }
    (wanted,), (found,) = session.run(None, given), module.run(given).values()
    assert np.isfinite(wanted).all(), mask
    np.testing.assert_allclose(found, wanted, atol=2e-3, err_msg=str(mask))
"""


def _half(net: Net, *shape: float) -> str:
    """Random weights in float16, or the number itself."""
    if isinstance(shape[0], float):
        return net.weight(shape[0], "float16")
    return net.weight(np.random.default_rng(5).normal(size=[*map(int, shape)]) / 4, "float16")


def test_what_float16_cannot_hold_is_noticed(gpu: Gpu, tmp_path: Path) -> None:
    """ONNX Runtime computes float16 in float32 on a CPU: numbers above 65504 are no infinities between operators."""
    net = Net(18)
    mask = net.op("Cast", net.input(1, 16, dtype="int64"), to=onnx.TensorProto.FLOAT16)
    added = net.op("Mul", net.op("Sub", _half(net, 1.0), mask), _half(net, -10000.0))
    scores = net.op("MatMul", net.input(8, 16, dtype="float16"), _half(net, 16, 16))
    weights = net.op("Softmax", net.op("Add", scores, added), axis=-1)
    onnx.save(net.build(net.op("MatMul", weights, _half(net, 16, 8))), tmp_path / "model.onnx")
    gpu.run(MASKED, str(tmp_path))


def test_a_kernel_that_corrupts_the_context(gpu: Gpu) -> None:
    """Nothing works after it in the process, which knows that, so that a worker ends itself."""
    said = gpu.run(CORRUPT, COLLAGE_STANDIN_CORRUPT="1", COLLAGE_STANDIN_KERNEL="scan")
    first, second, lost = said.splitlines()
    assert first == lost
    assert all("CUDA_ERROR_ILLEGAL_ADDRESS" in each for each in (first, second))


BESIDE = """
import threading
import numpy as np
from collage.core.cuda_driver import driver
from collage.kernel.device_array import empty_on, poison, put, to_host
gpu = driver()
gpu.enter()
values = np.arange(1000, dtype=np.float32)
source, target, other = (empty_on("cuda", (1000,), "float32") for _ in range(3))
put(source, values)
begun, said = threading.Event(), []

def load():
    begun.set()
    poison(other)
    put(other, values + 1)
    said.append(to_host(other))

thread = threading.Thread(target=load)

def enqueue():
    thread.start()
    begun.wait()
    thread.join(0.3)
    assert not said, "it does not wait for its turn"
    gpu.within(int(target.ctypes.data), int(source.ctypes.data), source.nbytes, gpu.stream)

with gpu.turn:
    graph = gpu.captured(gpu.stream, enqueue)
thread.join()
gpu.launch_graph(graph, gpu.stream)
assert np.array_equal(to_host(target), values) and np.array_equal(said[0], values + 1)
before, kept = gpu.free_bytes(), [empty_on("cuda", (1 << 20,), "uint8")]
assert gpu.free_bytes() < before
last = threading.Thread(target=kept.clear)
last.start(), last.join()
assert gpu.free_bytes() == before, "a thread that has not used the GPU gives memory back"
"""


def test_threads_that_copy_while_another_one_captures(gpu: Gpu) -> None:
    """What they enqueue would be part of the graph. Memory is given back in whatever thread its last user ends."""
    gpu.run(BESIDE)
