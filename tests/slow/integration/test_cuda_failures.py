"""What fails on a GPU costs no more than it has to, and is told in one line; on stand-ins for NVIDIA's libraries."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.compile.frontend.test_to_onnx import Net
from tests.helpers.cuda_processes import Gpu
from tests.slow.integration.test_cuda import COMPILE

pytest.importorskip("cuda.bindings.nvrtc")

REFUSED = """
import sys, collage
for backend in sys.argv[2:]:
    try:
        db = sys.argv[1] + ".refused.sqlite"
        collage.compile(sys.argv[1], db=db, device="cuda", backends=[backend], progress=False)
    except collage.CollageError as error:
        print(error)
"""


@dataclass(frozen=True)
class Result:
    """What came of a compile: the backends of its launches, the error of its outputs, and the database's kernels."""

    backends: set[str]
    error: float
    kernels: list[tuple[str, str, float | None, str, str]]

    def of(self, backend: str, part: str = "") -> list[tuple[float | None, str, str]]:
        """Time, kind of rejection and message of a backend's kernels with this in their settings."""
        return [each[2:] for each in self.kernels if each[0] == backend and part in each[1]]


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Gpu:
    return Gpu.build(tmp_path_factory.mktemp("gpu"), "libcublasLt.so.13")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A product and a softmax, so that there are two launches at least."""
    folder = tmp_path_factory.mktemp("model")
    net = Net(18)
    x = net.input(4, 8)
    product = net.op("MatMul", x, net.random(8, 16))
    onnx.save(net.build(net.op("Softmax", product, axis=-1)), folder / "model.onnx")
    rng = np.random.default_rng(1)
    np.savez(folder / "model.onnx.npz", **{name: feed.draw(rng) for name, feed in net.feeds.items()})
    return folder / "model.onnx"


def compiled(gpu: Gpu, model: Path, folder: Path, **settings: str) -> Result:
    options = json.dumps({"device": "cuda", "backends": ["tvm_cuda", "cublas"], "threads": 1})
    said = gpu.run(COMPILE, str(model), str(folder / "db"), str(folder / "out"), options, **settings)
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, dict(np.load(f"{model}.npz")))
    (found,) = np.load(folder / "out.npz").values()
    rows: Any = sqlite3.connect(folder / "db").execute(
        "SELECT backend, settings, median_us, rejection, message FROM kernels"
    )
    backends = {backend for backend, *_ in json.loads(said.splitlines()[-1])}
    return Result(backends, float(np.abs(found - wanted).max()), list(rows))


def test_a_kernel_that_corrupts_the_context_while_it_is_measured(gpu: Gpu, model: Path, tmp_path: Path) -> None:
    """It fails after it was launched. Each such candidate costs a worker, and the others are placed."""
    found = compiled(gpu, model, tmp_path, COLLAGE_STANDIN_CORRUPT_LATE="product")
    assert found.error < 1e-6 and found.backends == {"tvm_cuda"}
    crashed = found.of("cublas", "algorithm 1") + found.of("cublas", "algorithm 2")
    assert len(crashed) == 2
    for us, kind, message in crashed:
        assert us is None and kind == "crashed" and "CUDA_ERROR_ILLEGAL_ADDRESS" in message, (kind, message)
    assert any(us is not None for us, *_ in found.of("tvm_cuda"))
    assert all("ILLEGAL" not in (message or "") for _, _, message in found.of("tvm_cuda"))


def test_kernels_that_fail_in_the_network_only(gpu: Gpu, model: Path, tmp_path: Path) -> None:
    """One has too little memory, and the others corrupt the context when a graph replays them."""
    found = compiled(
        gpu,
        model,
        tmp_path,
        COLLAGE_STANDIN_CORRUPT_LATE="product",
        COLLAGE_STANDIN_IN_GRAPHS="1",
        COLLAGE_STANDIN_DENIED="1024",  # the workspace of the second algorithm
    )
    assert found.error < 1e-6 and found.backends == {"tvm_cuda"}
    ((us, *_),) = found.of("cublas", "algorithm 1")
    assert us is not None  # by itself it works, and the first mix with it is dropped as a whole
    for us, kind, message in found.of("cublas", "algorithm 2"):
        assert us is None and kind == "memory" and "out of memory of the GPU: 0 MiB wanted" in message


def test_a_gpu_that_no_backend_can_use_is_named(gpu: Gpu, model: Path) -> None:
    said = gpu.run(REFUSED, str(model), "tvm_cuda", "cublas", COLLAGE_STANDIN_CUDA="12080")
    found = [each for each in said.splitlines() if each.strip()]
    words = "the NVIDIA driver is for CUDA 12.8; it needs an NVIDIA GPU, its driver for CUDA 13.0 or later"
    assert len(found) == 2 and all(words in each for each in found), found


def kernel_times(path: Path) -> dict[tuple[str, str, str], tuple[float, str | None, int | None]]:
    """When each kernel was recorded, its clocks, and what was free where memory was short."""
    rows: Any = sqlite3.connect(path).execute(
        "SELECT digest, backend, settings, created, clocks, free_bytes FROM kernels"
    )
    return {(digest, backend, settings): rest for digest, backend, settings, *rest in rows}


def test_measurements_on_a_slow_gpu_are_made_again_when_it_is_fast(model: Path, tmp_path: Path) -> None:
    (tmp_path / "gpu").mkdir()
    gpu = Gpu.build(tmp_path / "gpu", "libcublasLt.so.13", "libnvidia-ml.so.1")
    database = tmp_path / "db"
    compiled(gpu, model, tmp_path, COLLAGE_STANDIN_MHZ="1200")
    first = kernel_times(database)
    noted = {key: json.loads(clocks)["sm_mhz"] for key, (_, clocks, _) in first.items() if clocks}
    assert set(noted.values()) == {1200} and {backend for _, backend, _ in noted} == {"tvm_cuda", "cublas"}
    # Nothing is known of higher clocks. Then another kernel has them, and at last the GPU has them all the time.
    compiled(gpu, model, tmp_path, COLLAGE_STANDIN_MHZ="1980")
    assert kernel_times(database) == first
    connection = sqlite3.connect(database)
    with connection:
        connection.execute(
            "INSERT INTO kernels SELECT 'another', backend, backend_version, settings, threads, hardware, tvm_version, "
            "median_us, noise_us, min_us, repeats, max_error, rejection, message, created, description, tuning, "
            "finite_only, gate, busy, rival_us, replace(clocks, '1200', '1980'), free_bytes "
            "FROM kernels WHERE clocks IS NOT NULL LIMIT 1"
        )
        connection.execute("DELETE FROM facts WHERE name = 'finished_compile'")
    compiled(gpu, model, tmp_path, COLLAGE_STANDIN_MHZ="1200")
    still = kernel_times(database)
    assert {key: still[key] for key in first} == first
    compiled(gpu, model, tmp_path, COLLAGE_STANDIN_MHZ="1980")
    again = kernel_times(database)
    made_again = {key for key in noted if again[key][0] > first[key][0]}
    assert made_again
    for key in made_again:
        assert json.loads(again[key][1] or "{}")["sm_mhz"] == 1980
    known_before = {key for key in noted if not again[key][0] > first[key][0]}
    assert not known_before, "each of them is needed by this compile"


def test_a_lack_of_memory_is_tried_again_when_there_is_more(gpu: Gpu, model: Path, tmp_path: Path) -> None:
    denied = {"COLLAGE_STANDIN_DENIED": "1024", "COLLAGE_STANDIN_MIB": "256"}
    database = tmp_path / "db"

    def refused() -> list[tuple[float, str | None, int | None]]:
        found = kernel_times(database)
        return [each for (_, _, settings), each in found.items() if "algorithm 2" in settings]

    compiled(gpu, model, tmp_path, **denied)
    (first,) = refused()
    assert first[2] is not None and 0 < first[2] < 256 << 20, "what the worker found, which has measured others"
    compiled(gpu, model, tmp_path, COLLAGE_STANDIN_MIB="256")  # as much as then
    assert refused() == [first]
    compiled(gpu, model, tmp_path, COLLAGE_STANDIN_MIB="512")
    (again,) = refused()
    assert again[0] > first[0] and again[2] is None
