"""Databases that travel: which rows stay, what is refused, and that nothing is lost."""

from __future__ import annotations

import itertools
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.errors import DatabaseError
from collage.measure_db.certainty import certainty, race_of
from collage.measure_db.database import Database, KernelKey, NetworkKey
from collage.measure_db.exchange import export, merge, usable_here
from collage.measure_db.results import GATE, Measurement, Rejection, RejectionKind, Slower, Timing
from collage.measure_db.rows import Row, rows_of, snapshot
from collage.measure_db.tables import FACTS, KERNELS, NETWORKS

KEY = KernelKey("d1", "onednn", "3.2", "", 2, "EPYC abc", "0.27.0")
SURE, UNSURE = Measurement(10.0, 0.1, 9.0, 31, 0.0), Measurement(9.0, 0.9, 8.0, 31, 0.0)
PLAN = NetworkKey("g1", "p1", 2, "EPYC abc", "onednn=3.2")
TIMING = Timing(10.0, 0.5, 9.0, 12.0, 8)
VERSIONS = {"onednn": "3.2"}


def filled(path: Path, rows: Mapping[Any, Any]) -> Path:
    """A database with these kernels, plans and facts."""
    with Database(path) as database:
        for key, value in rows.items():
            if isinstance(key, KernelKey):
                database.put(key, value)
            elif isinstance(key, NetworkKey):
                database.put_network(key, value)
            else:
                database.put_fact(*key, value)
    return path


def merged(folder: Path, *files: Path) -> list[Row]:
    """All rows after merging the files, in this order, into an empty database."""
    handle, name = tempfile.mkstemp(dir=folder)
    os.close(handle)
    with Database(name) as target:
        for file in files:
            with snapshot(file) as source:
                merge(target, source)
        return list(rows_of(target))


def test_the_measurement_with_less_noise_stays(tmp_path: Path) -> None:
    a, b = filled(tmp_path / "a", {KEY: SURE}), filled(tmp_path / "b", {KEY: UNSURE})
    for files in ((a, b), (b, a)):
        (row,) = merged(tmp_path, *files)
        assert row["median_us"] == 10.0


def test_a_kernel_that_was_wrong_once_stays_out(tmp_path: Path) -> None:
    wrong = Rejection(RejectionKind.INACCURATE, "wrong beside others")
    late = Rejection(RejectionKind.TIMEOUT, "60 s on a busy machine")
    a = filled(tmp_path / "a", {KEY: SURE, replace(KEY, digest="d2"): SURE})
    b = filled(tmp_path / "b", {KEY: wrong, replace(KEY, digest="d2"): late})
    for files in ((a, b), (b, a)):
        found = {row["digest"]: row["rejection"] for row in merged(tmp_path, *files)}
        assert found == {"d1": "inaccurate", "d2": None}


def test_plans_that_ran_against_each_other_stay_together(tmp_path: Path) -> None:
    """Were single rows chosen, p1 of a quiet minute would be compared with p2 of a busy one."""
    other = replace(PLAN, placement="p2")
    quiet = {PLAN: Timing(10.0, 0.5, 9.0, 12.0, 8), other: Timing(11.0, 0.1, 9.0, 12.0, 8)}
    busy = {PLAN: Timing(20.0, 0.4, 9.0, 12.0, 8), other: Timing(21.0, 8.0, 9.0, 12.0, 8)}
    facts = {("launches_us", str(PLAN)): [1.0], ("final_check", f"{PLAN} of 3"): "quiet"}
    a = filled(tmp_path / "a", {**quiet, **facts})
    b = filled(tmp_path / "b", {**busy, ("launches_us", str(PLAN)): [2.0]})
    first, second = merged(tmp_path, a, b), merged(tmp_path, b, a)
    assert first == second
    medians = {row["median_us"] for row in first if row.table is NETWORKS}
    values = {row["value"] for row in first if row.table is FACTS}
    assert (medians, values) in (({10.0, 11.0}, {"[1.0]", '"quiet"'}), ({20.0, 21.0}, {"[2.0]"}))


_noises = st.sampled_from([0.1, 0.5, 2.0])
_busy = st.sampled_from([None, 0.0, 0.05, 0.4])
_outcomes = st.one_of(
    st.builds(lambda noise, busy: Measurement(10.0, noise, 9.0, 31, 0.0, busy=busy), _noises, _busy),
    st.sampled_from([Rejection(kind, "why") for kind in RejectionKind]),
    st.builds(lambda repeats, busy: Slower(12.0, 11.0, repeats, busy), st.sampled_from([0, 3, 12]), _busy),
)
_keys = st.builds(lambda d, t: replace(KEY, digest=d, threads=t), st.sampled_from("ab"), st.sampled_from([1, 2]))
_plans = st.builds(lambda g, p: replace(PLAN, graph=g, placement=p), st.sampled_from("gh"), st.sampled_from("pq"))
_timings = st.builds(lambda noise, busy: Timing(10.0, noise, 9.0, 12.0, 8, busy), _noises, _busy)
_facts = st.one_of(
    st.tuples(st.just("epsilon_us"), st.sampled_from("xy")),
    st.tuples(st.just("launches_us"), _plans.map(str)),
)
_databases = st.tuples(
    st.dictionaries(_keys, _outcomes, max_size=3),
    st.dictionaries(_plans, _timings, max_size=3),
    st.dictionaries(_facts, st.integers(0, 3), max_size=3),
    st.integers(0, 2),
).map(lambda parts: ({**parts[0], **parts[1], **parts[2]}, parts[3]))


@given(st.tuples(_databases, _databases, _databases))
@settings(max_examples=12, deadline=None)
def test_merging_is_commutative_associative_and_idempotent(contents: Any) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = []
        for number, (rows, age) in enumerate(contents):
            files.append(filled(folder / f"{number}.sqlite", rows))
            with closing(sqlite3.connect(files[-1])) as connection, connection:
                for table in (
                    "kernels",
                    "networks",
                    "facts",
                ):  # dates that do not depend on this machine's clock
                    connection.execute(f"UPDATE {table} SET created = ?", (float(age),))
        results = [merged(folder, *order) for order in itertools.permutations(files)]
        assert all(each == results[0] for each in results)
        assert merged(folder, *files, *files) == results[0]
        # Nothing that is more certain is lost: each single row, and each race as a whole.
        found = {(row.table.name, row.key): row for row in results[0]}
        for file in files:
            with snapshot(file) as database:
                for row in rows_of(database):
                    if race_of(row) is None:
                        assert certainty(found[row.table.name, row.key]) >= certainty(row)


def test_import_takes_what_this_machine_can_use_and_says_what_not(tmp_path: Path) -> None:
    rows = {
        KEY: SURE,
        replace(KEY, hardware="Xeon"): SURE,
        replace(KEY, backend_version="3.1"): SURE,
        PLAN: Timing(10.0, 0.5, 9.0, 12.0, 8),
        replace(PLAN, versions="onednn=3.2 openvino=2026.1"): Timing(10.0, 0.5, 9.0, 12.0, 8),
        ("final_check", "a model"): {"complaint": ""},
        ("epsilon_us", "EPYC abc"): 1.5,
    }
    with (
        snapshot(filled(tmp_path / "theirs", rows)) as source,
        Database(tmp_path / "mine.sqlite") as target,
    ):
        found = merge(target, source, usable_here("EPYC abc", VERSIONS))
        assert found.taken == found.offered == 3
        assert found.refused == {
            "of another machine (Xeon)": 1,
            "of onednn 3.1, which is not installed here": 1,
            "of openvino 2026.1, which is not installed here": 1,
            "of checks, which are made here": 1,
        }
        assert target.get([KEY]) == {KEY: SURE} and target.get_facts("final_check", ["a model"]) == {}
        again = merge(target, source, usable_here("EPYC abc", VERSIONS))
        assert (again.taken, again.same) == (0, 3)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("median_us", float("inf")),
        ("median_us", -1.0),
        ("median_us", "fast"),
        ("median_us", None),
        ("noise_us", b"\x00"),
        ("threads", 1.5),
        ("rejection", "bribed"),
        ("message", "x" * (1 << 21)),
    ],
)
def test_rows_that_collage_cannot_have_written_are_not_taken(tmp_path: Path, column: str, value: object) -> None:
    file = filled(tmp_path / "theirs", {KEY: SURE, replace(KEY, digest="d2"): SURE})
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(f"UPDATE kernels SET {column} = ? WHERE digest = 'd1'", (value,))
    with snapshot(file) as source, Database(tmp_path / "mine.sqlite") as target:
        found = merge(target, source)
    assert found.taken == 1 and found.refused == {"that are no rows of Collage's": 1}


@pytest.mark.parametrize(
    ("column", "value"),
    [("median_us", "fast"), ("noise_us", b"\x00"), ("created", "now"), ("threads", "two")],
)
def test_rows_of_the_target_that_are_damaged_are_replaced(tmp_path: Path, column: str, value: object) -> None:
    file = filled(tmp_path / "theirs", {KEY: SURE, PLAN: TIMING, ("epsilon_us", "x"): 1.0})
    mine = filled(tmp_path / "mine", {KEY: SURE, PLAN: TIMING, ("epsilon_us", "x"): 1.0})
    tables = (KERNELS, NETWORKS, FACTS)
    with closing(sqlite3.connect(mine)) as connection, connection:
        for table in tables:
            if column in table.columns:
                connection.execute(f"UPDATE {table.name} SET {column} = ?", (value,))
    with snapshot(file) as source, Database(mine) as target:
        found = merge(target, source)
        broken = sum(column in table.columns for table in tables)
        assert (found.taken, found.same + found.less_certain) == (broken, 3 - broken)
        good = [row for row in rows_of(target) if not row.problem()]
        assert {row.table.name for row in good} == {table.name for table in tables}


def test_a_file_with_a_trigger_or_a_view_is_not_read(tmp_path: Path) -> None:
    for number, program in enumerate(
        (
            "CREATE TRIGGER evil AFTER INSERT ON facts BEGIN DELETE FROM kernels; END",
            "CREATE VIEW evil AS SELECT randomblob(1000000000)",
            "CREATE TABLE evil (x)",
            "CREATE INDEX evil ON facts (upper(value))",
        )
    ):
        file = filled(tmp_path / f"{number}", {KEY: SURE})
        with closing(sqlite3.connect(file)) as connection, connection:
            connection.execute(program)
        with pytest.raises(DatabaseError, match="'evil', which no database of Collage's has"), snapshot(file):
            pass


def test_what_is_no_database_is_named(tmp_path: Path) -> None:
    text, other = tmp_path / "text", tmp_path / "other"
    text.write_text("measurements " * 100)
    with closing(sqlite3.connect(other)) as connection, connection:
        connection.execute("CREATE TABLE t (x)")
    for path, words in (
        (text, "damaged, or no database"),
        (other, "no measurement database of Collage's"),
        (tmp_path / "none", "there is no measurement database at"),
    ):
        with pytest.raises(DatabaseError, match=words) as caught, snapshot(path):
            pass
        assert str(path) in str(caught.value)


def test_an_older_database_is_read_and_not_changed(tmp_path: Path) -> None:
    file = filled(tmp_path / "old", {KEY: SURE})
    with closing(sqlite3.connect(file)) as connection, connection:
        for table in ("kernels", "networks", "facts"):
            connection.execute(f"ALTER TABLE {table} DROP COLUMN busy")
        for column in ("gate", "finite_only", "rival_us", "clocks", "free_bytes"):
            connection.execute(f"ALTER TABLE kernels DROP COLUMN {column}")
        connection.execute("PRAGMA user_version = 2")
        connection.execute("PRAGMA journal_mode = DELETE")
    before = file.read_bytes()
    (row,) = merged(tmp_path, file)
    assert row["gate"] == 1 < GATE
    assert file.read_bytes() == before


def test_export_is_one_whole_file_that_can_be_read_only(tmp_path: Path) -> None:
    with Database(filled(tmp_path / "mine", {KEY: SURE, PLAN: Timing(10.0, 0.5, 9.0, 12.0, 8)})) as mine:
        out = tmp_path / "shelf" / "out.sqlite"
        out.parent.mkdir()
        assert export(mine, out).taken == 2
        with pytest.raises(DatabaseError, match=r"out\.sqlite exists\. .* --force"):
            export(mine, out)
        assert export(mine, out, replace=True).taken == 2
        assert [each.name for each in out.parent.iterdir()] == ["out.sqlite"]
        out.parent.chmod(0o500)
        assert len(merged(tmp_path, out)) == 2
        out.parent.chmod(0o700)


_MERGE = """
import sys
from collage.measure_db.database import Database
from collage.measure_db.exchange import merge
from collage.measure_db.rows import snapshot
with snapshot(__import__("pathlib").Path(sys.argv[2])) as source, Database(sys.argv[1]) as target:
    print("go", flush=True)
    merge(target, source)
"""


def test_killed_in_a_merge_all_or_nothing_is_there(tmp_path: Path) -> None:
    many = {replace(KEY, digest=f"d{number}"): SURE for number in range(3000)}
    source = tmp_path / "many.sqlite"
    with Database(source) as database, database.together():
        for key, value in many.items():
            database.put(key, value)
    seen = set()
    for number in range(6):
        target = filled(tmp_path / f"{number}.sqlite", {KEY: UNSURE, replace(KEY, digest="mine"): SURE})
        child = subprocess.Popen([sys.executable, "-c", _MERGE, str(target), str(source)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(number * 0.03)
        child.send_signal(signal.SIGKILL)
        child.communicate()
        with Database(target) as database:
            rows = [row for row in rows_of(database, (KERNELS,)) if not row.problem()]
            assert database.run("PRAGMA integrity_check") == [("ok",)]
        seen.add(len(rows))
    assert seen <= {2, 3001} and 2 in seen


def test_a_database_that_is_in_use_is_not_replaced_by_an_export(tmp_path: Path) -> None:
    """SQLite would apply the journal beside it to the file that has taken its place."""
    tanh = replace(KEY, digest="tanh")
    with Database(tmp_path / "mine.sqlite") as mine, Database(tmp_path / "other.sqlite") as other:
        mine.put(KEY, SURE)
        other.put(tanh, SURE)
        with pytest.raises(DatabaseError, match=r"other\.sqlite cannot be replaced: it is in use"):
            export(mine, other.path, replace=True)
        with pytest.raises(DatabaseError, match=r"mine\.sqlite cannot be exported over itself"):
            export(mine, mine.path, replace=True)
        assert {*other.get([KEY, tanh]), *mine.get([KEY])} == {KEY, tanh}
    with Database(tmp_path / "mine.sqlite") as mine:
        assert export(mine, tmp_path / "other.sqlite", replace=True).taken == 1
