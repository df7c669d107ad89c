"""``collage db``: what its commands print, and what they refuse."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from collage.cli.db import installed_versions, this_machine
from collage.measure_db import rows
from collage.measure_db.database import Database, KernelKey
from collage.measure_db.results import Measurement, Rejection, RejectionKind, Slower
from tests.helpers.cli.helpers import collage, fails, json_of, succeeds

FAST, SLOW = Measurement(10.0, 0.1, 9.0, 31, 0.0), Measurement(15.0, 0.1, 9.0, 31, 0.0)


@pytest.fixture
def key() -> KernelKey:
    """Of a kernel that a compile on this machine can use."""
    version = installed_versions()["onnxruntime"]
    return KernelKey("d1", "onnxruntime", version, "", 2, this_machine(), "0.27.0")


@pytest.fixture
def db(tmp_path: Path, key: KernelKey) -> Path:
    path = tmp_path / "team.sqlite"
    with Database(path) as database:
        database.put(key, SLOW, "conv2d+relu")
        database.put(replace(key, settings="other"), FAST, "conv2d+relu")
        database.put(replace(key, settings="no"), Rejection(RejectionKind.CRASHED, "SIGSEGV\x1b[2J"), "conv2d+relu")
        database.put(replace(key, hardware="Xeon"), FAST, "conv2d+relu")
    return path


def test_why_shows_all_candidates_with_what_they_lose_by(db: Path) -> None:
    text = succeeds("db", "why", "conv2d + relu", "--db", db)
    lines = [line.split() for line in text.splitlines() if "onnxruntime" in line]
    assert [("fastest" in each, "50%" in each) for each in lines] == [
        (True, False),
        (False, True),
        (False, False),
    ]
    assert "crashed: SIGSEGV" in text and "\x1b" not in text
    found = json_of("db", "why", "conv2d + relu", "--db", db, "--all", "--json")
    assert [row["median_us"] for row in found["regions"]["d1"]] == [10.0, 10.0, 15.0, None]
    fails(1, "db", "why", "softmax", "--db", db, words=("'softmax'", "collage db list"))


def test_list_shows_the_newest(db: Path) -> None:
    assert len(json_of("db", "list", "--db", db, "--json")["rows"]) == 3
    assert len(json_of("db", "list", "--db", db, "--all", "--limit", "2", "--json")["rows"]) == 2
    (row,) = json_of("db", "list", "--db", db, "--rejected", "--json")["rows"]
    assert row["rejection"] == "crashed"
    assert time.strftime("%Y-") in succeeds("db", "list", "--db", db)
    assert "nothing of that kind" in succeeds("db", "list", "--db", db, "--backend", "mkl")


def test_what_is_exported_is_imported_by_the_same_machine(db: Path, tmp_path: Path) -> None:
    out, mine = tmp_path / "out.sqlite", tmp_path / "mine.sqlite"
    assert "4 taken" in succeeds("db", "export", out, "--db", db)
    fails(1, "db", "export", out, "--db", db, words=("out.sqlite exists", "--force"))
    text = succeeds("db", "import", out, "--db", mine)
    assert "3 taken" in text and "1 not taken: of another machine (Xeon)" in text
    assert json_of("db", "stats", "--db", mine, "--json")["measured"] == {"onnxruntime": 2}
    assert json_of("db", "import", out, "--db", mine, "--json", "--all")["files"][str(out)]["taken"] == 1


def test_what_was_measured_under_a_quota_is_of_this_machine(tmp_path: Path, key: KernelKey) -> None:
    """As by ``compile --threads 2`` in a container with 1.5 cores."""
    path, out, mine = tmp_path / "quota.sqlite", tmp_path / "out.sqlite", tmp_path / "mine.sqlite"
    with Database(path) as database:
        database.put(replace(key, hardware=f"{this_machine()} throttled to 1.5"), FAST, "conv2d")
        database.put(replace(key, hardware="Xeon throttled to 1.5"), FAST, "conv2d")
    assert len(json_of("db", "list", "--db", path, "--json")["rows"]) == 1
    assert len(json_of("db", "why", "conv2d", "--db", path, "--json")["regions"]["d1"]) == 1
    assert "1 taken" in succeeds("db", "export", out, "--db", path, "--usable")
    assert "1 taken" in succeeds("db", "import", path, "--db", mine)
    pruned = json_of("db", "prune", "--db", path, "--other-machines", "--json")
    assert (pruned["removed"], pruned["kernels_left"]) == ({"of other machines": 1}, 1)


def test_a_file_of_which_nothing_can_be_used_is_an_error(tmp_path: Path, key: KernelKey) -> None:
    path = tmp_path / "xeon.sqlite"
    with Database(path) as database:
        database.put(replace(key, hardware="Xeon"), FAST)
    found = collage("db", "import", path, "--db", tmp_path / "mine.sqlite")
    assert found.exit_code == 1
    assert "1 not taken: of another machine (Xeon)" in found.stdout
    assert "xeon.sqlite can be used on this machine" in found.stderr and "--all" in found.stderr


def test_merge_tells_of_several_machines(db: Path, tmp_path: Path) -> None:
    text = succeeds("db", "merge", tmp_path / "all.sqlite", db, db)
    assert "4 taken" in text and "4 already there" in text and "measurements of 2 machines" in text
    fails(1, "db", "merge", db, db, words=("cannot be merged into itself",))
    fails(1, "db", "merge", db, tmp_path / "none", words=("no measurement database at",))
    (tmp_path / "text").write_text("text")
    fails(1, "db", "merge", db, tmp_path / "text", words=("damaged, or no database",))


@pytest.mark.parametrize("command", ["merge", "import"])
def test_nothing_is_taken_where_a_later_file_is_broken(command: str, db: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("text")
    new = tmp_path / "new.sqlite"
    files = [new, db, tmp_path / "text"] if command == "merge" else [db, tmp_path / "text", "--db", new]
    fails(1, "db", command, *files, words=("damaged, or no database",))
    assert not new.exists()


def test_every_command_names_a_database_that_somebody_else_holds(
    db: Path, tmp_path: Path, network: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Database.__init__, "__kwdefaults__", {**Database.__init__.__kwdefaults__, "busy_s": 0.1})
    monkeypatch.setattr(rows, "_BUSY_S", 0.1)
    commands = [
        *(("stats",), ("list",), ("why", "relu"), ("verify",), ("prune",), ("export", tmp_path / "out")),
        ("import", tmp_path / "other"),
    ]
    filled = tmp_path / "other"
    with Database(filled) as other:
        other.put_fact("epsilon_us", "x", 1.0)
    words = ("is locked by another process. Try again later",)
    with closing(sqlite3.connect(db, isolation_level=None)) as holder:
        holder.execute("PRAGMA locking_mode = EXCLUSIVE")
        holder.execute("BEGIN EXCLUSIVE")
        for command, *rest in commands:
            fails(1, "db", command, *rest, "--db", db, words=(str(db), *words))
        fails(1, "db", "merge", db, filled, words=(str(db), *words))
        fails(1, "db", "import", db, "--db", filled, words=(str(db), *words))
        fails(1, "db", "merge", filled, db, words=(str(db), *words))
        fails(1, "compile", network, "-o", tmp_path / "out.collage", "--db", db, words=(str(db), *words))
        assert "another process holds it" in collage("doctor", "--db", db).stdout
    assert json_of("db", "stats", "--db", db, "--json")["facts"] == 0
    assert not (tmp_path / "out.collage").exists()


def test_prune_and_verify(db: Path) -> None:
    assert "is whole" in succeeds("db", "verify", "--db", db)
    would = json_of("db", "prune", "--other-machines", "--dry-run", "--db", db, "--json")
    assert would == {"removed": {"of other machines": 1}, "kernels_left": 4, "dry_run": True}
    assert "1 removed: of other machines" in succeeds("db", "prune", "--other-machines", "--db", db)
    assert json_of("db", "prune", "--db", db, "--json")["kernels_left"] == 3
    with closing(sqlite3.connect(db)) as connection, connection:
        connection.execute("UPDATE kernels SET noise_us = -1 WHERE settings = 'other'")
    found = collage("db", "verify", "--db", db, "--json")
    assert found.exit_code == 1 and len(json.loads(found.stdout)["problems"]) == 1
    assert "collage db merge NEW.sqlite" in found.stderr


def test_why_takes_no_kernel_that_lost_a_race_for_the_fastest(tmp_path: Path, key: KernelKey) -> None:
    path = tmp_path / "races.sqlite"
    rows = {"raced": Slower(12.0, 11.0, 7), "hopeless": Slower(9.0, 8.0, 0)}
    with Database(path) as database:
        for settings, outcome in rows.items():
            database.put(replace(key, settings=settings), outcome, "conv2d")
    text = succeeds("db", "why", "conv2d", "--db", path)
    assert "fastest" not in text and "lost a race" in text and "known times ruled it out" in text
    with Database(path) as database:
        database.put(replace(key, settings="measured"), SLOW, "conv2d")
    lines = succeeds("db", "why", "conv2d", "--db", path).splitlines()
    (first,) = [number for number, line in enumerate(lines) if "fastest" in line]
    assert "measured" in lines[first] and all("onnxruntime" in line for line in lines[first : first + 3])


@pytest.mark.parametrize("command", [("list",), ("why", "relu")])
def test_unknown_backends_are_named(command: tuple[str, ...], db: Path) -> None:
    fails(
        2,
        "db",
        *command,
        "--db",
        db,
        "--backend",
        "nope",
        words=("unknown backend: nope", "onednn", "onnxruntime"),
    )
