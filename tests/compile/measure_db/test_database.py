"""The database keeps what it is given, says what is wrong with a file, and stands several writers."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest

from collage.errors import DatabaseError
from collage.measure_db.database import Database, KernelKey, NetworkKey
from collage.measure_db.migrations import APPLICATION_ID, MIGRATIONS
from collage.measure_db.results import GATE, Measurement, Rejection, RejectionKind, Slower, Timing
from tests.helpers.small_disk import no_file_above

KEY = KernelKey("d1", "onednn", "3.2", "", 2, "EPYC abc", "0.27.0")
MEASURED = Measurement(12.5, 0.25, 12.0, 31, 1e-6)
CRASHED = Rejection(RejectionKind.CRASHED, "SIGSEGV")


def _with(part: str) -> KernelKey:
    changed: dict[str, Any] = {part: "another"}
    return replace(KEY, **changed)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new folder" / "db.sqlite"


def test_what_is_put_is_got_by_another_process(path: Path) -> None:
    with Database(path) as database:
        database.put(KEY, MEASURED, "conv2d+relu")
        database.put(replace(KEY, backend="tvm"), CRASHED, "conv2d")
    with Database(path) as database:
        other = replace(KEY, threads=1)
        found = database.get([KEY, other, replace(KEY, backend="tvm"), KEY])
        assert found == {KEY: MEASURED, replace(KEY, backend="tvm"): CRASHED}
        assert database.get([]) == {}


@pytest.mark.parametrize("part", ["digest", "backend", "backend_version", "settings", "hardware", "tvm_version"])
def test_each_part_of_the_key_counts(path: Path, part: str) -> None:
    with Database(path) as database:
        database.put(KEY, MEASURED)
        assert database.get([_with(part)]) == {}


def test_a_kernel_that_lost_a_race(path: Path) -> None:
    slower = Slower(20.0, 12.5, 6, tuning="a record")
    with Database(path) as database:
        database.put(KEY, slower, "conv2d")
        assert database.get([KEY]) == {KEY: slower}
        database.put(KEY, MEASURED)
        assert database.get([KEY]) == {KEY: MEASURED}


def test_many_keys_at_once(path: Path) -> None:
    keys = [replace(KEY, digest=str(number)) for number in range(5000)]
    with Database(path) as database:
        for key in keys[::50]:
            database.put(key, MEASURED)
        assert set(database.get(keys)) == set(keys[::50])


def test_networks_and_facts(path: Path) -> None:
    network = NetworkKey("g", "p", 2, "EPYC", "onednn=3.2")
    timing = Timing(100.0, 1.0, 99.0, 120.0, 40)
    with Database(path) as database:
        assert database.get_network(network) is None
        assert database.get_facts("epsilon_us", ["here"]) == {}
        database.put_network(network, timing, "resnet")
        database.put_fact("epsilon_us", "here", 1.5)
        database.put_fact("wrong", "m", {"3": "reason"})
        assert database.get_network(network) == timing
        assert database.get_network(replace(network, threads=1)) is None
        assert database.get_facts("epsilon_us", ["here"]) == {"here": 1.5}
        assert database.get_facts("wrong", ["m"]) == {"m": {"3": "reason"}}


def test_what_was_recorded_before_is_recorded_anew(path: Path) -> None:
    network, timing = NetworkKey("g", "p", 2, "EPYC", "onednn=3.2"), Timing(100.0, 1.0, 99.0, 120.0, 40)
    with Database(path) as database:
        database.put(KEY, MEASURED)
        database.put_network(network, timing)
        database.put_fact("epsilon_us", "here", 0.5)
    with Database(path, since=time.time()) as database:
        assert database.get([KEY]) == {}
        assert database.get_network(network) is None
        assert database.get_facts("epsilon_us", ["here"]) == {}
        database.put(KEY, MEASURED)
        database.put_network(network, timing)
        database.put_fact("epsilon_us", "here", 0.25)
        assert database.get([KEY]) == {KEY: MEASURED}
        assert database.get_network(network) == timing
        assert database.get_facts("epsilon_us", ["here"]) == {"here": 0.25}
        assert database.stats().networks == 1


def test_no_database(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"these are notes, no database, and long enough to be looked at as one" * 100)
    with pytest.raises(DatabaseError, match=r"db\.sqlite is no database of measurements.*--db") as caught:
        Database(path)
    assert "Delete" not in str(caught.value)


def _fill(path: Path) -> None:
    """A database with something of everything in it, and nothing beside the file."""
    with Database(path) as database:
        for number in range(60):
            outcome = CRASHED if number % 5 == 0 else MEASURED
            database.put(replace(KEY, digest=f"{number:032}"), outcome, "conv2d+relu")
        database.put_fact("wrong", "m", {"3": "reason"})
        database.put_network(NetworkKey("g", "p", 2, "EPYC", "v"), Timing(100.0, 1.0, 99.0, 120.0, 40), "net")
        database._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _use(path: Path) -> None:
    """All that a compile does with a database."""
    with Database(path) as database:
        database.get([replace(KEY, digest=f"{number:032}") for number in range(60)])
        database.get_facts("wrong", ["m"])
        database.get_network(NetworkKey("g", "p", 2, "EPYC", "v"))
        database.put(KEY, MEASURED)
        database.put_fact("wrong", "n", None)
        database.stats()


def _problem(path: Path) -> str | None:
    """What is said of the database when it is used, if anything is."""
    try:
        _use(path)
    except DatabaseError as error:
        return str(error)
    return None


@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_damage_anywhere_is_named_or_does_no_harm(path: Path, damage: str) -> None:
    _fill(path)
    whole, rng = path.read_bytes(), random.Random(0)
    named = 0
    for attempt in range(60):
        data = bytearray(whole)
        if damage == "cut":
            del data[rng.randrange(1, len(data)) :]
        else:
            for _ in range(rng.choice((1, 20))):
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        damaged = path.with_name(f"{attempt}.sqlite")
        damaged.write_bytes(data)
        problem = _problem(damaged)
        assert problem is None or (f"{attempt}.sqlite" in problem and "--db" in problem)
        named += problem is not None
    assert named > 5


def test_rows_that_are_no_numbers(path: Path) -> None:
    _fill(path)
    with Database(path) as database:
        database._connection.execute("UPDATE kernels SET median_us = 'much' WHERE rejection IS NULL")
        with pytest.raises(DatabaseError, match=r"is damaged.*'much' is no number"):
            database.get([replace(KEY, digest=f"{1:032}")])


def _put_many(database: Database) -> None:
    for number in range(1000):
        database.put(replace(KEY, digest=f"n{number}"), MEASURED, "x" * 500)


def test_disk_full(path: Path) -> None:
    _fill(path)
    with Database(path) as database:
        size = path.stat().st_size
        with no_file_above(size), pytest.raises(DatabaseError, match="cannot be written: the disk is full"):
            _put_many(database)
        before = database.stats().measured["onednn"]
        database.put(replace(KEY, digest="after"), MEASURED)
    with Database(path) as database:
        assert database.stats().measured["onednn"] == before + 1
        assert database.get([replace(KEY, digest=f"{1:032}")])


def _put_and_be_interrupted(database: Database) -> None:
    with database.together():
        database.put(KEY, MEASURED)
        raise KeyboardInterrupt


def test_together_is_all_or_nothing(path: Path) -> None:
    keys = [replace(KEY, digest=str(number)) for number in range(3)]
    with Database(path) as database:
        with pytest.raises(KeyboardInterrupt):
            _put_and_be_interrupted(database)
        assert database.get([KEY]) == {}
        with database.together():
            for key in keys:
                database.put(key, MEASURED)
    with Database(path) as database:
        assert set(database.get(keys)) == set(keys)


def test_together_is_over_where_it_is_interrupted_before_it_begins(path: Path) -> None:
    """Ctrl-C while SQLite waits for another process is raised when it has begun the transaction."""

    class Interrupted:
        def __init__(self, connection: sqlite3.Connection) -> None:
            self.connection = connection

        def execute(self, query: str, *values: Any) -> sqlite3.Cursor:
            found = self.connection.execute(query, *values)
            if query == "BEGIN IMMEDIATE":
                raise KeyboardInterrupt
            return found

        def __getattr__(self, name: str) -> Any:
            return getattr(self.connection, name)

    with Database(path) as database, Database(path, busy_s=0.05) as other:
        connection = database._connection
        database._connection = Interrupted(connection)  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            _put_together(database, [KEY])
        database._connection = connection
        database.put(KEY, MEASURED)
        assert other.get([KEY]) == {KEY: MEASURED}
        _put_together(database, [KEY])


def _put_together(database: Database, keys: list[KernelKey]) -> None:
    with database.together():
        for key in keys:
            database.put(key, MEASURED)


def test_another_programs_database_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE bookmarks (url TEXT)")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    with pytest.raises(DatabaseError, match="another program"):
        Database(path)
    assert path.read_bytes() == before


def test_newer_schema(path: Path) -> None:
    with Database(path, migrations=[*MIGRATIONS, lambda connection: None]):
        pass
    with pytest.raises(DatabaseError, match=r"newer Collage.*Upgrade"):
        Database(path)


def test_migration_keeps_what_is_there(path: Path) -> None:
    with Database(path) as database:
        database.put(KEY, MEASURED)

    def add_note(connection: sqlite3.Connection) -> None:
        connection.execute("ALTER TABLE kernels ADD COLUMN note TEXT NOT NULL DEFAULT 'none'")

    with Database(path, migrations=[*MIGRATIONS, add_note]) as database:
        assert database.get([KEY]) == {KEY: MEASURED}
        assert database.run("SELECT note FROM kernels") == [("none",)]


def test_what_an_earlier_gate_let_pass_is_kept_and_measured_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a database from before the gate knew NaN, and those of a gate before the present one."""
    path.parent.mkdir()
    with sqlite3.connect(path) as old:
        for migration in MIGRATIONS[:2]:
            migration(old)
        old.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        old.execute("PRAGMA user_version = 2")
        columns = "digest, backend, backend_version, settings, threads, hardware, tvm_version, median_us, noise_us"
        old.execute(
            f"INSERT INTO kernels ({columns}, min_us, repeats, max_error, created, description) "
            f"VALUES ({', '.join('?' * 14)})",
            (*astuple(KEY), 1.0, 0.1, 1.0, 9, 0.0, 1.0, ""),
        )
    old.close()
    with Database(path) as database:
        assert database.get([KEY]) == {}
        assert database.stats().measured == {"onednn": 1}
        database.put(KEY, MEASURED)
        assert database.get([KEY]) == {KEY: MEASURED}
        assert database.stats().measured == {"onednn": 1}
    monkeypatch.setattr("collage.measure_db.database.GATE", GATE + 1)
    with Database(path) as database:
        assert database.get([KEY]) == {}
        assert database.stats().measured == {"onednn": 1}


def test_migration_that_fails_changes_nothing(path: Path) -> None:
    with Database(path) as database:
        database.put(KEY, MEASURED)

    def fails(connection: sqlite3.Connection) -> None:
        connection.execute("DROP TABLE kernels")
        connection.execute("SELECT * FROM nowhere")

    with pytest.raises(DatabaseError):
        Database(path, migrations=[*MIGRATIONS, fails])
    with Database(path) as database:
        assert database.get([KEY]) == {KEY: MEASURED}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("file/db.sqlite", r"cannot make the folder.*--db"),
        # Root may write anywhere but to the kernel's files.
        ("/proc/self/db.sqlite", r"cannot be opened for writing.*--db"),
        (".", r"is no file\. Give a file with --db"),
        ("/dev/null", "/dev/null is no file"),
    ],
)
def test_paths_that_can_be_no_database(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DatabaseError, match=words):
        Database(tmp_path / name)


def test_locked_for_too_long(path: Path) -> None:
    with Database(path), sqlite3.connect(path, isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        with Database(path, busy_s=0.1) as database, pytest.raises(DatabaseError, match="locked"):
            database.put(KEY, MEASURED)
        other.execute("ROLLBACK")
    other.close()


_WRITER = """
import sys
from dataclasses import astuple, replace
from collage.measure_db.database import Database
from tests.compile.measure_db.test_database import KEY, MEASURED
with Database(sys.argv[1]) as database:
    for number in range(int(sys.argv[3])):
        database.put(replace(KEY, backend=sys.argv[2], digest=str(number)), MEASURED)
        print(number, flush=True)
"""


def _writer(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _WRITER, str(path), name, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_two_processes_write_a_new_database_at_once(path: Path) -> None:
    writers = [_writer(path, name, 300) for name in ("a", "b")]
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    with Database(path) as database:
        assert database.stats().measured == {"a": 300, "b": 300}


def test_killing_the_writer_loses_nothing(path: Path) -> None:
    writer = _writer(path, "a", 1_000_000)
    assert writer.stdout is not None
    written = 0
    for line in writer.stdout:
        written = int(line) + 1
        if written == 200:
            writer.send_signal(signal.SIGKILL)
            break
    writer.wait(timeout=10)
    writer.stdout.close()
    with Database(path) as database:
        assert database.stats().measured["a"] >= written
