"""ONNX Runtime's telemetry is off wherever Collage runs it, unless the user has it on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import collage
from tests.models import elementwise_net

ROOT = Path(__file__).parents[1]
VARIABLE = "ORT_DISABLE_TELEMETRY"

LOAD = """
import sys
import numpy as np
import collage
module = collage.load(sys.argv[1])
module(*(np.zeros(port.type.shape, port.type.dtype) for port in module.program.model_inputs))
import onnxruntime
"""

WORKER = """
from collage.measure.worker.process import WorkerProcess
from collage.measure.worker.whole_protocol import InitWhole
from collage.core.temporary import TemporaryFolder
with TemporaryFolder("whole") as folder:
    worker = WorkerProcess(1)
    worker.begin(InitWhole(str(folder), (), {}, 1))
    worker.kill()
"""


def files_of(program: str, folder: Path, *arguments: str | Path, choice: str | None = None) -> list[str]:
    """What the program writes in its user's folders."""
    folder.mkdir()
    environment = {name: value for name, value in os.environ.items() if name not in (VARIABLE, "CI")}
    environment |= dict.fromkeys(("HOME", "XDG_CACHE_HOME", "TMPDIR"), str(folder))
    environment |= {} if choice is None else {VARIABLE: choice}
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file())


def test_a_service_that_loads_a_module_writes_nothing(tmp_path: Path) -> None:
    module = collage.compile(
        elementwise_net(), backends=["onnxruntime"], db=tmp_path / "db.sqlite", progress=False, quick=True
    )
    module.save(tmp_path / "m.collage")
    assert files_of(LOAD, tmp_path / "home", tmp_path / "m.collage") == []


def test_a_worker_writes_nothing(tmp_path: Path) -> None:
    assert files_of(WORKER, tmp_path / "home") == []


@pytest.mark.parametrize("choice", ["0", "false", ""])
def test_the_users_choice_stands(tmp_path: Path, choice: str) -> None:
    program = f"import os, collage.backends.onnxruntime; assert os.environ[{VARIABLE!r}] == {choice!r}"
    files_of(program, tmp_path / "home", choice=choice)
