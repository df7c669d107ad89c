"""`scripts/bench busy`: five compiles of a tiny network, two of them at once, and a race between what came of them."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from io import StringIO
from pathlib import Path
from typing import Any

import onnx
import pytest
from rich.console import Console

from collage.bench.compiled import Options
from collage.core.machine_lock import LOCK_VARIABLE
from collage.errors import CollageError
from collage.measure_db.busy import BUSY_VARIABLE
from scripts.lib.studies import tables
from scripts.lib.studies.shared_machine import ALONE, BESIDE, LATER, TOGETHER, Compile, shared_machine
from tests.models import elementwise_net


def test_compiles_beside_a_busy_core_and_two_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOCK_VARIABLE, str(tmp_path / "lock"))
    monkeypatch.setenv(BUSY_VARIABLE, "0.1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    model = tmp_path / "net.onnx"
    onnx.save_model(elementwise_net(), str(model))
    # However busy this machine is, all candidates are measured.
    more = ("--quick", "--budget", "inf", "--backends", "onnxruntime")
    timeouts: dict[str, int] = {}
    end = Compile.end

    def ended(compile: Compile, process: subprocess.Popen[str]) -> dict[str, Any]:
        found = end(compile, process)
        with closing(sqlite3.connect(compile.folder / compile.database)) as connection:
            query = "SELECT count(*) FROM kernels WHERE rejection = 'timeout'"
            (timeouts[compile.module],) = connection.execute(query).fetchone()
        return found

    monkeypatch.setattr(Compile, "end", ended)
    result = shared_machine(model, Options(threads=1, rounds=3), lambda _: None, more=more)
    assert (tmp_path / "lock").exists()
    assert len(timeouts) == 5 and not any(timeouts.values())  # nobody's turn counts against another one
    assert set(result["compiles"]) == {ALONE, BESIDE, LATER, *TOGETHER}
    made = {what: each["measurements"] for what, each in result["compiles"].items()}
    assert made[ALONE] > 0 and made[BESIDE] > 0 and made[LATER] <= made[BESIDE]
    assert result["over_alone"][ALONE] == 1.0 and not result["failed"]
    assert all(ratio > 0 for ratio in result["over_alone"].values())
    console = Console(width=200, record=True, file=StringIO())
    for part in tables.shared_machine([result]):
        console.print(part)
    text = console.export_text()
    assert all(word in text for word in (BESIDE, LATER, "1.000x"))


def test_a_compile_that_fails_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    missing = Compile(tmp_path / "none.onnx", tmp_path, "db.sqlite", "module", threads=1)
    with pytest.raises(CollageError, match=r"compiling .*none\.onnx: collage: error: "):
        missing.end(missing.start())
