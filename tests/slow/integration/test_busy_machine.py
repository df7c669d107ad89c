"""Compiles on busy machines: what was disturbed is measured again on a quiet one."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import collage
from collage.compiler import compile as compile_module
from collage.measure_db.busy import BUSY_VARIABLE
from tests.helpers.models import elementwise_net


def compiled(database: Path) -> collage.Module:
    libraries = ["onednn", "onnxruntime"]
    return collage.compile(elementwise_net(), db=database, backends=libraries, progress=False)


def rows(database: Path, query: str) -> list[tuple[float, ...]]:
    with closing(sqlite3.connect(database)) as connection, connection:
        return connection.execute(query).fetchall()


def test_what_was_disturbed_is_measured_again_on_a_quiet_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = tmp_path / "db.sqlite"
    quiet = False

    def made() -> int:
        module = compiled(database)
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
