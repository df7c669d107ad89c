"""Schedules that MetaSchedule finds on a GPU: trials are launched and timed there, on stand-ins for its libraries."""

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

from collage.backends.tvm_codegen.traces import GPU
from collage.backends.tvm_codegen.tuned import parse_record
from tests.compile.frontend.test_to_onnx import Net
from tests.helpers.cuda_processes import Gpu

pytest.importorskip("cuda.bindings.nvrtc")

COMPILE = """
import json, sys
import numpy as np, collage
model, db, out, options = sys.argv[1:]
module = collage.compile(model, db=db, progress=False, **json.loads(options))
module.save(out)
np.savez(out + ".npz", **module.run(dict(np.load(model + ".npz"))))
print(json.dumps([[r.backend, r.split] for r in module.program.launches]))
"""

LOAD = """
import sys
import numpy as np, collage
path, feeds, out = sys.argv[1:]
np.savez(out, **collage.load(path).run(dict(np.load(feeds))))
"""

OPTIONS = {"device": "cuda", "backends": ["tvm_cuda"], "threads": 1, "tune_trials": 3}


@dataclass(frozen=True)
class Model:
    """A product and what follows it, in a file, with inputs and what ONNX Runtime makes of them."""

    path: Path
    wanted: Any

    def compiled(self, gpu: Gpu, folder: Path, **settings: str) -> list[list[str]]:
        """Backends and splits of the launches. The results are those of ONNX Runtime."""
        paths = str(self.path), str(folder / "db"), str(folder / "out")
        said = gpu.run(COMPILE, *paths, json.dumps(OPTIONS), **settings)
        (found,) = np.load(folder / "out.npz").values()
        np.testing.assert_allclose(found, self.wanted, rtol=1e-4, atol=1e-5)
        launches: list[list[str]] = json.loads(said.splitlines()[-1])
        return launches


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Gpu:
    return Gpu.build(tmp_path_factory.mktemp("gpu"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    net = Net(18)
    product = net.op("MatMul", net.input(32, 24), net.random(24, 64))
    onnx.save(net.build(net.op("Relu", product)), path)
    feeds = {name: feed.draw(np.random.default_rng(1)) for name, feed in net.feeds.items()}
    np.savez(f"{path}.npz", **feeds)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return Model(path, session.run(None, feeds)[0])


def kernels(folder: Path) -> list[tuple[str, str, float | None, str | None, str | None, float]]:
    """Settings, record, time, kind of rejection, message and date of each kernel of TVM."""
    rows: Any = sqlite3.connect(folder / "db").execute(
        "SELECT settings, tuning, median_us, rejection, message, created FROM kernels WHERE tvm_version != ''"
    )
    return sorted(rows, key=lambda row: row[-1])


def test_the_best_trial_is_a_candidate_beside_dlights(gpu: Gpu, model: Model, tmp_path: Path) -> None:
    model.compiled(gpu, tmp_path)
    found = kernels(tmp_path)
    tuned = [each for each in found if "; tuned] 3 trials" in each[0]]
    assert tuned and [each for each in found if each[0] == "[cuda:plain -> cuda:plain; ] kernels 2"]
    for _, record, us, rejection, message, _ in tuned:
        assert us is not None, (rejection, message)
        (trace,) = parse_record(record, GPU).values()
        assert any(instruction[0] == "Bind" for instruction in trace[0])
    # The next compile measures nothing, and builds from the record what it finds to be the fastest.
    connection = sqlite3.connect(tmp_path / "db")
    with connection:
        connection.execute(
            "UPDATE kernels SET median_us = 1e6, min_us = 1e6 WHERE settings LIKE '[cuda:plain -> cuda:plain; ]%'"
        )
        connection.execute("DELETE FROM facts")
        connection.execute("DELETE FROM networks")
    launches = model.compiled(gpu, tmp_path)
    assert [each[:2] + each[3:] for each in kernels(tmp_path)] == [
        (settings, record, *rest) for settings, record, _, *rest in found
    ]
    assert ["tvm_cuda", "tuned"] in launches
    gpu.run(LOAD, str(tmp_path / "out"), f"{model.path}.npz", str(tmp_path / "again.npz"))
    (again,) = np.load(tmp_path / "again.npz").values()
    np.testing.assert_allclose(again, model.wanted, rtol=1e-4, atol=1e-5)


def test_a_trial_that_corrupts_the_context_costs_a_worker(gpu: Gpu, model: Model, tmp_path: Path) -> None:
    model.compiled(gpu, tmp_path, COLLAGE_STANDIN_CORRUPT_LATE="trial_")
    for settings, _, us, rejection, message, _ in kernels(tmp_path):
        if "tuned" in settings:
            assert (us, rejection) == (None, "crashed") and "CUDA_ERROR_ILLEGAL_ADDRESS" in str(message)
        else:
            assert us is not None, (settings, rejection, message)
