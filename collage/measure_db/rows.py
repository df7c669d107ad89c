"""Rows of a database as values: read one by one out of a file that anybody may have written, and checked."""

from __future__ import annotations

import json
import math
import os
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from collage.backends.source_digest import plain_version
from collage.core.temporary import TemporaryFolder
from collage.errors import DatabaseError, DatabaseLockedError
from collage.measure_db.database import Database, read_clocks
from collage.measure_db.migrations import APPLICATION_ID
from collage.measure_db.results import RejectionKind
from collage.measure_db.tables import KERNELS, TABLES, Table

_VERSION = re.compile(r"(\w+)=([^=]+?)(?= \w+=|$)")
"""One of the versions of a network: ``onednn=3.2.0``."""
_BUSY_S = 10.0
_LONGEST = 1 << 20
"""Characters of a text. The longest that Collage writes are records of tuning, of some 20,000."""


NOT_OURS = "that are no rows of Collage's"
"""What ``Row.problem`` finds something wrong with, in counts for people."""

_INTEGERS = frozenset({"threads", "repeats", "finite_only", "gate", "free_bytes"})
_NUMBERS = frozenset({"median_us", "noise_us", "min_us", "p90_us", "max_error", "busy", "created", "rival_us"})
_MEASURED = frozenset({"median_us", "noise_us", "min_us", "repeats", "max_error"})
_OPTIONAL = _MEASURED | {"rival_us", "rejection", "message", "clocks", "free_bytes"}
"""Columns of ``kernels`` that are empty in a rejection, and columns that are empty in a measurement, too."""


@dataclass(frozen=True)
class Row:
    """One row of a table, as it lies there. ``row["created"]`` is one of its values."""

    table: Table
    values: tuple[Any, ...]

    def __getitem__(self, column: str) -> Any:
        return self.values[self.table.columns.index(column)]

    @property
    def key(self) -> tuple[Any, ...]:
        """The values that no other row of the table has."""
        return self.values[: self.table.keys]

    @property
    def rejected(self) -> bool:
        """Whether it says that a kernel cannot be used."""
        return self.table is KERNELS and self["rejection"] is not None

    @property
    def outrun(self) -> bool:
        """Whether it says that a kernel is slower than another by a share at least, and no more."""
        return self.table is KERNELS and not self.rejected and self["rival_us"] is not None

    @property
    def relative_noise(self) -> float:
        """The half-width of the confidence interval of a measurement's median, as a share of the median."""
        return float(self["noise_us"]) / max(float(self["median_us"]), 1e-9)

    def problem(self) -> str:
        """What is wrong with the row, or ""; nothing of it is used before this was asked."""
        for column, value in zip(self.table.columns, self.values, strict=True):
            if problem := _problem(self.table, column, value):
                return f"{column}: {problem}"
        if self.table is KERNELS and not self.rejected:
            empty = next((each for each in sorted(_MEASURED) if self[each] is None), None)
            return f"{empty}: a measurement without a number" if empty else ""
        return ""


def missing_version(row: Row, versions: Mapping[str, str]) -> str:
    """A library and its version that made the kernel or network, where ``versions`` has another or none; else "".

    ``versions`` are those of ``keyed_versions``. Networks have plain ones.
    """
    if row.table is KERNELS:
        used = [(row["backend"], row["backend_version"])]
    else:
        used = _VERSION.findall(row["versions"])
        versions = {name: plain_version(version) for name, version in versions.items()}
    return next((f"{name} {version}" for name, version in used if versions.get(name) != version), "")


def _problem(table: Table, column: str, value: Any) -> str:
    if value is None:
        return "" if column == "busy" or (table is KERNELS and column in _OPTIONAL) else "empty"
    if column in _INTEGERS:
        return "" if isinstance(value, int) and value >= 0 else f"{value!r:.40} is no count"
    if column in _NUMBERS:
        usable = isinstance(value, (int, float)) and math.isfinite(value) and value >= 0
        return "" if usable else f"{value!r:.40} is no time or error"
    if not isinstance(value, str) or len(value) > _LONGEST:
        return f"{value!r:.40} is no text of Collage's"
    if column == "rejection" and value not in {kind.value for kind in RejectionKind}:
        return f"{value!r:.40} is no kind of rejection"
    if column == "clocks":
        try:
            read_clocks(value)
        except ValueError:
            return f"{value!r:.40} are no clocks"
    if column == "value":
        try:
            json.loads(value)
        except (ValueError, RecursionError):
            return f"{value!r:.40} is no JSON"
    return ""


@contextmanager
def snapshot(path: Path) -> Iterator[Database]:
    """A copy of a database as it is now, brought to this schema; the file itself is only read.

    It is removed at the end. Raises DatabaseError, with the way out, for a file that is no database of Collage's, is
    damaged, or was written by a newer Collage.
    """
    if not path.is_file():
        raise DatabaseError(f"there is no measurement database at {path}.")
    with TemporaryFolder("rows") as folder:
        copy = folder / "copy.sqlite"
        try:
            with closing(_read_only(path)) as source, closing(sqlite3.connect(copy)) as target:
                (owner,) = source.execute("PRAGMA application_id").fetchone()
                if owner != APPLICATION_ID:
                    raise DatabaseError(f"{path} is no measurement database of Collage's.")
                source.backup(target)
                _refuse_programs(target, path)
        except sqlite3.Error as error:
            if "locked" in str(error):
                raise DatabaseLockedError(
                    f"the measurement database {path} is locked by another process. Try again later (SQLite: {error})."
                ) from error
            raise DatabaseError(
                f"the measurement database {path} cannot be read. It is damaged, or no database (SQLite: {error})."
            ) from error
        try:
            database = Database(copy)
        except DatabaseError as error:
            raise DatabaseError(str(error).replace(str(copy), str(path))) from error
        with database:
            yield database


def _read_only(path: Path) -> sqlite3.Connection:
    """The file opened for reading, also in a folder where SQLite can keep no files beside it."""
    uri = f"file:{quote(os.fsencode(path.resolve()))}?mode=ro"
    connection = sqlite3.connect(uri, uri=True, timeout=_BUSY_S)
    try:
        connection.execute("PRAGMA schema_version").fetchone()
    except sqlite3.OperationalError as error:
        connection.close()
        if "locked" in str(error) or path.with_name(path.name + "-wal").exists():
            raise
        return sqlite3.connect(uri + "&immutable=1", uri=True)
    return connection


def _refuse_programs(connection: sqlite3.Connection, path: Path) -> None:
    """Raise DatabaseError where the file has views, triggers or indexes of its own.

    These have expressions that SQLite evaluates. Indexes that SQLite makes for keys have no text.
    """
    names = {table.name for table in TABLES}
    for kind, name, text in connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall():
        ours = name in names if kind == "table" else kind == "index" and text is None
        if not ours:
            raise DatabaseError(
                f"{path} has the {kind} {str(name)[:40]!r}, which no database of Collage's has. It is not read."
            )


def rows_of(database: Database, tables: Sequence[Table] = TABLES, *, backwards: bool = False) -> Iterator[Row]:
    """All rows of the tables, in the order of their keys, or the other way round, unchecked.

    Raises DatabaseError where it comes to a page that cannot be read.
    """
    for table in tables:
        for values in database.each(table.select(backwards=backwards)):
            yield Row(table, tuple(values))
