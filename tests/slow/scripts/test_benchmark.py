"""`scripts/bench cpu` on a tiny network."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx

from tests.helpers.models import elementwise_net

SCRIPT = Path(__file__).parents[3] / "scripts" / "bench"


def script(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "cpu", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_script(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save_model(elementwise_net(), str(path))
    options = ("--contenders", "onnxruntime", "--rounds", "1", "--db", tmp_path / "db", "--without", "tvm")
    done = script(path, tmp_path / "missing.onnx", *options, "--json")
    assert done.returncode == 1 and "missing.onnx" in done.stderr, done.stderr
    found = json.loads(done.stdout)
    assert found["rounds"] == 1 and list(found["failed"]) == [str(tmp_path / "missing.onnx")]
    assert (
        all(found[key] for key in ("date", "commit", "machine")) and "scripts/bench cpu" in found["command"]
    )
    (model,) = found["models"]
    assert model["model"] == "net.onnx" and sum(model["mix"].values()) > 0
    assert model["engines"].keys() == {"onnxruntime", "collage"}
    assert np.isclose(found["geometric_mean"]["best"], model["speedup_vs_best_engine"], atol=1e-3)
    assert model["ablation"].keys() == {"tvm"} and model["ablation"]["tvm"] > 0
