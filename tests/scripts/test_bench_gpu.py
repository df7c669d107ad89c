"""`scripts/bench gpu`: without a GPU, with a part that is cut off, and a network on a stand-in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.lib.gpu.fragment import Fragment
from scripts.lib.gpu.parts import Part, run_parts
from scripts.lib.gpu.task import Task
from tests.cuda_processes import Gpu

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench"
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
    parts = [Part("a", "slow_part", "", 3.0), Part("b", "slow_part", "", 3.0)]
    run_parts(parts, out, 12.0, {"gpu": "none"})
    found = json.loads(out.read_text())
    assert found["gpu"] == "none"
    first = found["parts"]["a"]
    assert (first["first"], first["doing"], first["ended"]) == (1, "slow", "stopped after 3 s")
    assert first["wrong"] == {"failed": "ZeroDivisionError: division by zero"}
    assert found["parts"]["b"] == {"left out": "the time is over"}


def test_steps_go_on_after_a_failure(tmp_path: Path) -> None:
    fragment = Fragment(tmp_path / "found.json")

    def fails() -> Any:
        raise ValueError("no")

    assert fragment.step("one", fails) is None
    assert fragment.step("two", lambda: 2) == 2
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["one"] == {"failed": "ValueError: no"} and found["two"] == 2
    assert found["seconds"].keys() == {"one", "two"} and "doing" not in found


def test_a_network_on_a_stand_in(tmp_path: Path) -> None:
    """Collage's own steps succeed there, and those of PyTorch on a GPU fail, each by itself."""
    pytest.importorskip("cuda.bindings.nvrtc")
    pytest.importorskip("torch")
    gpu = Gpu.build(tmp_path, "libcublasLt.so.13")
    backends = ("tvm_cuda", "cublas")
    task = Task("mlp", 1, "float32", "cuda", backends, 20.0, False, str(tmp_path), True)
    assert Task.read(json.loads(json.dumps(task.plain()))) == task
    code = "import sys; from scripts.lib.gpu.network import main; main()"
    gpu.run(code, json.dumps(task.plain()), str(tmp_path / "found.json"))
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["right"]["error"] < 1e-5
    assert {*found["compile"]["backends"]} <= {*backends}
    assert "failed" in found["pytorch"]
    assert found["times"]["us"]["collage"]["latency us"] > 0
