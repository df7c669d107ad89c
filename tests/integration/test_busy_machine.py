"""Compiles on busy machines: what was disturbed is measured again on a quiet one, and two at once take turns."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import onnx
import pytest

import collage
from collage.compiler import compile as compile_module
from collage.core.machine_lock import LOCK_VARIABLE
from collage.measure_db.busy import BUSY_VARIABLE
from tests.models import elementwise_net


def rows(database: Path, query: str) -> list[tuple[float, ...]]:
    with closing(sqlite3.connect(database)) as connection, connection:
        return connection.execute(query).fetchall()


def test_what_was_disturbed_is_measured_again_on_a_quiet_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = tmp_path / "db.sqlite"
    quiet = False

    def made() -> int:
        module = collage.compile(elementwise_net(), db=database, progress=False)
        return module.report.measurements_made

    monkeypatch.setattr(compile_module, "quiet_now", lambda best_us: quiet)
    assert made() > 0
    for table in ("kernels WHERE rejection IS NULL", "networks"):
        ((every, known),) = rows(database, f"SELECT count(*), count(busy) FROM {table}")
        assert every == known > 0
    timed = "name IN ('epsilon_us', 'launch_us', 'launch_times_us')"
    assert rows(database, f"SELECT count(*) > 0, count(*) = count(busy) FROM facts WHERE {timed}") == [(1, 1)]
    for table in ("kernels", "networks", "facts"):
        rows(database, f"UPDATE {table} SET busy = 0.5, created = 5.0")
    monkeypatch.delenv(BUSY_VARIABLE)
    assert made() == 0  # the machine is as busy as before
    quiet = True
    assert made() > 0
    measured = "SELECT total(created = 5.0) < 0.5 * count(*) FROM kernels WHERE rejection IS NULL"
    assert rows(database, measured) == [(1,)]  # some may be of regions that are not proposed this time
    monkeypatch.setenv(BUSY_VARIABLE, "1")  # however busy this machine is now
    assert made() == 0


def test_two_compiles_at_once_take_turns_and_both_end(tmp_path: Path) -> None:
    onnx.save_model(elementwise_net(), str(tmp_path / "net.onnx"))
    environment = os.environ | {
        LOCK_VARIABLE: str(tmp_path / "lock"),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    compiles = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "collage", "compile", "net.onnx", "--quick", "--quiet"),
                *("-o", f"{name}.collage", "--db", f"{name}.sqlite"),
            ],
            cwd=tmp_path,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in "ab"
    ]
    for each in compiles:
        _, errors = each.communicate(timeout=300)
        assert each.returncode == 0, errors
    assert (tmp_path / "lock").exists()
    for name in "ab":
        assert rows(
            tmp_path / f"{name}.sqlite", "SELECT count(*) FROM kernels WHERE rejection = 'timeout'"
        ) == [(0,)]
