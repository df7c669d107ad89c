"""`scripts/bench gpu`: without a GPU, with a part that is cut off, and a network on a stand-in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

import collage
from collage.runtime.suffix import SuffixExecutor
from scripts.lib.gpu.contenders import collage_contender
from scripts.lib.gpu.parts import Part, run_parts
from scripts.lib.gpu.task import Task
from tests.compile.frontend.test_to_onnx import Net
from tests.helpers.cuda_processes import Gpu

SCRIPT = Path(__file__).parents[3] / "scripts" / "bench"
SLOW = """
import sys, time
from pathlib import Path
from scripts.lib.gpu.fragment import Fragment
fragment = Fragment(Path(sys.argv[1]))
fragment.step("first", lambda: 1)
fragment.step("wrong", lambda: 1 / 0)
fragment.step("slow", lambda: time.sleep(600))
"""


def test_without_a_gpu(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "gpu", "mlp", "--out", str(tmp_path / "gpu.json")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2, done.stderr
    assert not done.stdout and not list(tmp_path.iterdir())
    (line,) = (each for each in done.stderr.splitlines() if each.strip())
    assert "runs on an NVIDIA GPU only, and there is no NVIDIA driver" in line


def test_what_is_left_of_a_part_that_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_part.py").write_text(SLOW)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{SCRIPT.parents[1]}")
    out = tmp_path / "found.json"
    parts = [Part("a", "slow_part", "", 8.0), Part("b", "slow_part", "", 8.0)]
    run_parts(parts, out, 17.0, {"gpu": "none"})
    found = json.loads(out.read_text())
    assert found["gpu"] == "none"
    first = found["parts"]["a"]
    assert (first["first"], first["doing"], first["ended"]) == (1, "slow", "stopped after 8 s")
    assert first["wrong"] == {"failed": "ZeroDivisionError: division by zero"}
    assert found["parts"]["b"] == {"left out": "the time is over"}


def test_what_a_part_has_found_is_kept_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is killed as a whole leaves what it has found so far, and no processes."""
    (tmp_path / "slow_part.py").write_text(SLOW.replace("lambda: 1)", "lambda: __import__('os').getpid())"))
    out = tmp_path / "found.json"
    code = f"""
from pathlib import Path
from scripts.lib.gpu.parts import Part, run_parts
run_parts([Part("a", "slow_part", "", 60.0)], Path({str(out)!r}), 60.0, {{}})
"""
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{SCRIPT.parents[1]}"}
    child = subprocess.Popen([sys.executable, "-c", code], env=environment)
    end = time.monotonic() + 30
    while time.monotonic() < end:
        found = json.loads(out.read_text()) if out.exists() else {}
        if found.get("parts", {}).get("a", {}).get("doing") == "slow":
            break
        time.sleep(0.1)
    child.kill()
    child.wait()
    part = Path(f"/proc/{found['parts']['a']['first']}")
    while part.exists() and time.monotonic() < end:
        time.sleep(0.1)
    assert not part.exists()


def test_a_network_on_a_stand_in(tmp_path: Path) -> None:
    """Collage's own steps succeed there, and those of PyTorch on a GPU fail, each by itself."""
    pytest.importorskip("cuda.bindings.nvrtc")
    pytest.importorskip("torch")
    gpu = Gpu.build(tmp_path, "libcublasLt.so.13")
    backends = ("tvm_cuda", "cublas")
    task = Task("mlp", 1, "float32", "cuda", backends, 20.0, False, str(tmp_path), True)
    assert Task.read(json.loads(json.dumps(task.plain()))) == task
    code = "from scripts.lib.gpu.{} import main; main()"
    gpu.run(code.format("network"), json.dumps(task.plain()), str(tmp_path / "found.json"), "60")
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["right"]["error"] < 1e-5
    assert {*found["compile"]["backends"]} <= {*backends}
    assert "failed" in found["pytorch"]
    assert found["times"]["us"]["collage"]["latency us"] > 0
    gpu.run(code.format("rivals"), json.dumps(task.plain()), str(tmp_path / "rivals.json"), "60")
    again = json.loads((tmp_path / "rivals.json").read_text())
    assert again["load"]["error"] < 1e-5
    assert "failed" in again["torch.compile"] and again["times with torch.compile"]["us"].keys() == {"collage"}


def test_a_module_that_an_engine_ends_is_timed_from_host_to_host(tmp_path: Path) -> None:
    """Where the nonzero elements are is found by an engine, since nobody knows how many there will be."""
    net = Net(18)
    onnx.save(net.build(net.op("NonZero", net.op("Relu", net.input(8, 8)))), tmp_path / "model.onnx")
    module = collage.compile(tmp_path / "model.onnx", db=tmp_path / "db", progress=False)
    assert isinstance(module.executor, SuffixExecutor)
    x = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    contender = collage_contender(module, [x])
    contender.enqueue()
    contender.wait()
    np.testing.assert_array_equal(contender.whole()[0], np.nonzero(x > 0))


@pytest.mark.parametrize("workload", ["mlp", "bert_base"])
def test_networks_in_float16(workload: str) -> None:
    torch = pytest.importorskip("torch")
    found = Task(workload, 1, "float16", "cuda", (), 1.0, False, "", small=True).build()
    with torch.inference_mode():
        outputs = found.model(*found.sample(0))
    for each in outputs if isinstance(outputs, tuple) else (outputs,):
        assert each.dtype is torch.float16 and torch.isfinite(each).all()
