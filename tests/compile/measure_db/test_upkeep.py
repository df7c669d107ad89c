"""Pruning and verifying a database, and looking into it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from collage.measure_db.database import Database
from collage.measure_db.listing import RowFilter, candidates, latest
from collage.measure_db.results import Rejection, RejectionKind
from collage.measure_db.rows import rows_of
from collage.measure_db.upkeep import OLD_GATE, PruneRule, prune, verify
from tests.compile.measure_db.test_exchange import KEY, PLAN, SURE, TIMING, VERSIONS, filled


def changed(path: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement, values)


def test_only_what_no_compile_uses_is_removed(tmp_path: Path) -> None:
    path = filled(tmp_path / "db", {KEY: SURE, replace(KEY, digest="d2"): SURE})
    changed(path, "UPDATE kernels SET gate = 1 WHERE digest = 'd2'")
    with Database(path) as database:
        assert prune(database, PruneRule(), dry_run=True) == {OLD_GATE: 1}
        assert len(list(rows_of(database))) == 2
        assert prune(database, PruneRule()) == {OLD_GATE: 1}
        assert [row["digest"] for row in rows_of(database)] == ["d1"]
        assert prune(database, PruneRule()) == {}


def test_each_rule_removes_its_rows_and_the_facts_of_plans_go_with_the_plans(tmp_path: Path) -> None:
    other = replace(PLAN, hardware="Xeon")
    rows = {
        KEY: SURE,
        replace(KEY, hardware="Xeon"): SURE,
        replace(KEY, backend_version="3.1"): SURE,
        PLAN: TIMING,
        other: TIMING,
        ("launches_us", str(PLAN)): [1.0],
        ("launches_us", str(other)): [1.0],
        ("epsilon_us", "EPYC abc"): 1.5,
    }
    path = filled(tmp_path / "db", rows)
    changed(path, "UPDATE facts SET created = 5 WHERE name = 'epsilon_us'")
    with Database(path) as database:
        assert prune(database, PruneRule(before=6.0)) == {"too old": 1}
        assert prune(database, PruneRule(hardware="EPYC abc")) == {
            "of other machines": 2,
            "of plans that are removed": 1,
        }
        assert prune(database, PruneRule(versions=VERSIONS)) == {"of versions that are not installed": 1}
        assert [row.table.name for row in rows_of(database)] == ["kernels", "networks", "facts"]
        assert prune(database, PruneRule(hardware="EPYC abc", versions=VERSIONS)) == {}


def test_verify_names_the_row_or_the_page_that_is_damaged(tmp_path: Path) -> None:
    many = {replace(KEY, digest=f"d{number}"): SURE for number in range(400)}
    path = filled(tmp_path / "db", many)
    with Database(path) as database:
        assert verify(database) == []
    changed(path, "UPDATE kernels SET noise_us = 'none' WHERE digest = 'd7'")
    with Database(path) as database:
        (problem,) = verify(database)
        assert "d7 onednn" in problem and "noise_us: 'none' is no time" in problem
        database.run("PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray(path.read_bytes())
    middle = len(data) // 2 // 4096 * 4096
    data[middle : middle + 4096] = b"\xff" * 4096
    path.write_bytes(data)
    with Database(path) as database:
        assert any("SQLite" in problem for problem in verify(database))


def test_candidates_of_a_region_fastest_first_and_rejections_last(tmp_path: Path) -> None:
    with Database(tmp_path / "db") as database:
        slow = replace(SURE, median_us=30.0)
        wrong = Rejection(RejectionKind.INACCURATE, "off")
        database.put(replace(KEY, backend="tvm"), slow, "conv2d + relu")
        database.put(replace(KEY, backend="mkl"), wrong, "conv2d + relu")
        database.put(KEY, SURE, "conv2d + relu")
        database.put(replace(KEY, digest="d2"), SURE, "matmul")
        database.put(replace(KEY, digest="d3", hardware="Xeon"), SURE, "conv2d + relu")
        found = candidates(database, "Conv2d+ReLU", RowFilter(hardware="EPYC abc"))
        assert {d: [row["backend"] for row in rows] for d, rows in found.items()} == {"d1": ["onednn", "tvm", "mkl"]}
        assert candidates(database, "softmax", RowFilter()) == {}
        assert [row["digest"] for row in latest(database, RowFilter(only="measured"), 2)] == ["d3", "d2"]
        assert [row["backend"] for row in latest(database, RowFilter(only="rejected"), 9)] == ["mkl"]
