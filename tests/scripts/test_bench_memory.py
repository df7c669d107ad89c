"""`scripts/bench memory`: the memory of a compile and of the processes that it starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx

from scripts.lib.processes import descendants, private_bytes
from scripts.lib.studies.memory import Watch
from tests.models import conv_net

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
_MB = 1 << 20


def test_memory_of_a_process_and_of_its_children() -> None:
    code = "import sys; data = bytearray(b'x') * (64 << 20); print(flush=True); sys.stdin.read()"
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None and child.stdout is not None
    child.stdout.readline()
    before = private_bytes(os.getpid())
    array = np.ones(80 * _MB, np.uint8)  # so large that it is no memory which was used before
    assert private_bytes(os.getpid()) - before > 70 * _MB
    assert child.pid in descendants(os.getpid())
    assert private_bytes(child.pid) > 64 * _MB
    watch = Watch()
    with watch.watching():
        pass  # it looks once at least
    own, other, every = watch.peaks["start"]
    assert own > array.nbytes and other > 64 * _MB and every >= own + other
    child.communicate("")
    assert private_bytes(child.pid) == 0


def test_the_command(tmp_path: Path) -> None:
    onnx.save(conv_net(), tmp_path / "model.onnx")
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "bench"), "memory", str(tmp_path / "model.onnx"), "--quick", "--json"],
        timeout=300,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)["models"]
    weights = sum(4 * np.prod(tensor.dims) for tensor in conv_net().graph.initializer)
    assert result["weight_bytes"] == weights
    stages = {each["stage"]: each for each in result["stages"]}
    assert "verify" in stages  # the worker imports TVM there, which takes seconds
    assert result["peak_bytes"] == max(each["all_bytes"] for each in stages.values()) > 50 * _MB
    assert max(each["largest_bytes"] for each in stages.values()) > 10 * _MB
