"""A database goes on in memory where its file fails: what was recorded stays known, what comes next is not kept."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from collage.errors import DatabaseError
from collage.measure_db.database import Database
from tests.compile.measure_db.test_database import KEY, MEASURED
from tests.helpers.small_disk import no_file_above

NEXT = replace(KEY, digest="next")


def test_on_a_full_disk(tmp_path: Path) -> None:
    path = tmp_path / "db.sqlite"
    with Database(path) as database:
        database.put(KEY, MEASURED)
        with no_file_above(1):
            with pytest.raises(DatabaseError, match="cannot be written"):
                database.put(NEXT, MEASURED)
            database.go_on_in_memory()
            database.put(NEXT, MEASURED)
            with database.together():
                database.put(replace(KEY, digest="together"), MEASURED)
        assert database.get([KEY, NEXT]) == {KEY: MEASURED, NEXT: MEASURED}
        assert database.path == path
    with Database(path) as database:
        assert database.get([KEY, NEXT]) == {KEY: MEASURED}


@pytest.mark.parametrize("begin", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
def test_while_another_process_holds_the_file(begin: str, tmp_path: Path) -> None:
    path = tmp_path / "db.sqlite"
    with Database(path, busy_s=0.05) as database:
        database.put(KEY, MEASURED)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute(begin)
        with pytest.raises(DatabaseError, match="locked by another process"):
            database.put(NEXT, MEASURED)
        database.go_on_in_memory()
        database.put(NEXT, MEASURED)
        assert database.get([KEY, NEXT]) == {KEY: MEASURED, NEXT: MEASURED}
        other.execute("ROLLBACK")
        other.close()


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "db.sqlite"
    with Database(path) as database:
        for number in range(1000):
            database.put(replace(KEY, digest=f"{number:032}"), MEASURED)
    path.write_bytes(path.read_bytes()[:4096] + bytes(path.stat().st_size - 4096))
    with Database(path) as database:
        database.go_on_in_memory()
        assert database.get([KEY]) == {}
        database.put(KEY, MEASURED)
        assert database.get([KEY]) == {KEY: MEASURED}
