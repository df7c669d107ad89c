"""Databases that travel: merged, imported, exported. Of two rows with one key the more certain one stays.

A merge is one transaction: a process that is killed in it leaves the database as it was. It is commutative, associative
and idempotent (``collage.measure_db.certainty``).
"""

from __future__ import annotations

import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from collage.core.new_file import new_file
from collage.core.temporary import TemporaryFolder
from collage.errors import DatabaseError
from collage.kernel.target import hardware_of
from collage.measure_db.certainty import Race, certainty, race_certainty, race_of
from collage.measure_db.database import Database
from collage.measure_db.results import GATE
from collage.measure_db.rows import NOT_OURS, Row, missing_version, rows_of
from collage.measure_db.tables import FACTS, KERNELS, TABLES, Table

Filter: TypeAlias = Callable[[Row], str]
"""Why a row is not taken, or "" for one that is."""

JUDGEMENTS = frozenset(
    "final_check wrong_conversions engine_trial engine_on_hostile errors_on_samples plan_dropped".split()
)
"""Facts that say what is right. They are found out anew where a database comes from somebody else."""


@dataclass(frozen=True)
class Exchange:
    """What came of a merge. All are numbers of rows; ``refused`` has them by reason.

    Those that were ``same`` were there already, with the same values.
    """

    taken: int = 0
    same: int = 0
    less_certain: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)

    @property
    def offered(self) -> int:
        """How many rows were not refused."""
        return self.taken + self.same + self.less_certain


def merge(target: Database, source: Database, wanted: Filter = lambda _: "") -> Exchange:
    """Bring the rows of ``source`` that are ``wanted`` into ``target``, where they are new or more certain.

    Rows that Collage cannot have written are refused, and those of the target make room for any that has their key.
    Raises DatabaseError, with nothing changed.
    """
    refused: Counter[str] = Counter()
    offered = list(_usable(source, wanted, refused))
    with target.together():
        known = {(row.table.name, row.key): row for row in rows_of(target) if not row.problem()}
        taken, removed = _better(offered, known)
        for row in removed:
            target.run(row.table.delete, row.key)
        for row in taken:
            target.run(row.table.put, row.values)
    same = sum(known.get((row.table.name, row.key)) == row for row in offered)
    return Exchange(len(taken), same, len(offered) - len(taken) - same, dict(refused))


def export(database: Database, path: Path, wanted: Filter = lambda _: "", *, replace: bool = False) -> Exchange:
    """Write the rows that are wanted to a database of one file, which appears whole or not at all.

    Raises DatabaseError where the file exists, unless it is to be replaced, and where it is in use; CollageError where
    it cannot be written.
    """
    if path.exists() and not replace:
        raise DatabaseError(
            f"{path} exists. Give another path, or --force to replace it. `collage db merge` adds to a database."
        )
    _refuse_in_use(path, database)
    with TemporaryFolder("export") as folder:
        copy = folder / "export.sqlite"
        with Database(copy) as made:
            found = merge(made, database, wanted)
            made.run("VACUUM")
            made.run("PRAGMA journal_mode = DELETE")  # one file, which may be read where nothing can be written
        with new_file(path) as stream, copy.open("rb") as content:
            shutil.copyfileobj(content, stream)
    return found


def _refuse_in_use(path: Path, database: Database) -> None:
    """Raises DatabaseError for the database itself, and for one whose journal SQLite would apply to the new file."""
    if path.exists() and path.samefile(database.path):
        raise DatabaseError(f"{path} cannot be exported over itself. `collage db prune` removes what is not needed.")
    journals = [path.with_name(path.name + end) for end in ("-wal", "-journal")]
    if found := [each for each in journals if each.exists()]:
        raise DatabaseError(
            f"{path} cannot be replaced: it is in use, or was not closed ({found[0].name}). Give another path."
        )


def usable_here(hardware: str, versions: Mapping[str, str]) -> Filter:
    """A filter for what a compile on this machine can use: of this hardware (Target.measured_on, with any CPU
    quota), of the libraries that are installed.

    Facts that say what is right are not wanted either: they are found out here.
    """

    def why_not(row: Row) -> str:
        if row.table is FACTS:
            return "of checks, which are made here" if row["name"] in JUDGEMENTS else ""
        if hardware_of(row["hardware"]) != hardware_of(hardware):
            return f"of another machine ({row['hardware']})"
        if row.table is KERNELS and row["gate"] != GATE:
            return "of another edition of the numerics gate"
        missing = missing_version(row, versions)
        return missing and f"of {missing}, which is not installed here"

    return why_not


def _usable(source: Database, wanted: Filter, refused: Counter[str]) -> Iterator[Row]:
    """The rows to be merged; the others are counted. Where pages are damaged, those that can be read."""
    for table in TABLES:
        for row in _readable(source, table, refused):
            why_not = NOT_OURS if row.problem() else wanted(row)
            if why_not:
                refused[why_not] += 1
            else:
                yield row


def _readable(source: Database, table: Table, refused: Counter[str]) -> Iterator[Row]:
    """The rows that can be read: from the first one up to damage, and from the last one back to it."""
    seen = set()
    try:
        for row in rows_of(source, (table,)):
            seen.add(row.key)
            yield row
    except DatabaseError:
        refused[f"of damaged pages of {table.name}, perhaps more than one"] += 1
        with suppress(DatabaseError):
            for row in rows_of(source, (table,), backwards=True):
                if row.key in seen:
                    return
                yield row


def _better(offered: Sequence[Row], known: Mapping[Any, Row]) -> tuple[list[Row], list[Row]]:
    """The offered rows to be written, and the known ones to be removed first. Rows that stay are in neither.

    Plans of one network that ran against each other are taken or left together, with what is known of their launches.
    """
    taken: list[Row] = []
    removed: list[Row] = []
    ours = _races(known.values())
    for race, rows in _races(offered).items():
        mine = ours.get(race, [])
        if mine != rows and (not mine or race_certainty(rows) > race_certainty(mine)):
            removed += [row for row in mine if row not in rows]
            taken += [row for row in rows if row not in mine]
    for row in offered:
        if race_of(row) is None:
            mine_row = known.get((row.table.name, row.key))
            if mine_row is None or certainty(row) > certainty(mine_row):
                taken.append(row)
    return taken, removed


def _races(rows: Iterable[Row]) -> dict[Race, list[Row]]:
    """The rows of each race, in the order of their keys."""
    races: dict[Race, list[Row]] = defaultdict(list)
    for row in rows:
        race = race_of(row)
        if race is not None:
            races[race].append(row)
    return {race: sorted(found, key=lambda row: (row.table.name, row.key)) for race, found in races.items()}
