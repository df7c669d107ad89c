"""The measurement database: SQLite, safe for several processes at once, nothing measured is ever lost.

Every put commits at once, in WAL mode: killing the process between two puts loses nothing.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeAlias, TypeVar

import platformdirs

from collage.errors import DatabaseError
from collage.measure_db.migrations import APPLICATION_ID, MIGRATIONS
from collage.measure_db.results import GATE, Measurement, Outcome, Rejection, RejectionKind
from collage.measure_db.timing import Timing

log = logging.getLogger(__name__)

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Migration: TypeAlias = Callable[[sqlite3.Connection], None]

_BUSY_S = 30.0

T = TypeVar("T")


@dataclass(frozen=True)
class KernelKey:
    """What a kernel's time depends on. ``digest`` is Subgraph.digest, ``hardware`` Target.measured_on.

    ``settings`` is Backend.settings; neither a path nor a position in a model is part of it.
    """

    digest: str
    backend: str
    backend_version: str
    settings: str
    threads: int
    hardware: str
    tvm_version: str


@dataclass(frozen=True)
class NetworkKey:
    """What a whole network's time depends on: ``placement`` is a digest of regions and their backends."""

    graph: str
    placement: str
    threads: int
    hardware: str
    versions: str


@dataclass(frozen=True)
class Stats:
    """What is in a database. ``measured`` and ``rejected`` count kernels by backend."""

    path: str
    file_bytes: int
    measured: Mapping[str, int]
    rejected: Mapping[str, int]
    rejections: Mapping[str, int]
    """By kind of rejection."""
    hardware: Mapping[str, int]
    """Kernels by device."""
    networks: int
    facts: int


class Key(Protocol[T]):
    """Where a value is in a database (see ``collage.measure_db.keys``)."""

    def look_up(self, database: Database) -> T | None:
        """The value that is recorded, or None."""

    def record(self, database: Database, value: T) -> None:
        """Record a value, replacing an earlier one."""


def default_path() -> Path:
    """``measurements.sqlite`` in the user's cache folder."""
    return platformdirs.user_cache_path("collage") / "measurements.sqlite"


class Database:
    """An open database. Use it in the thread that opened it; other processes may use the file meanwhile."""

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        since: float = 0.0,
        migrations: Sequence[Migration] = MIGRATIONS,
        busy_s: float = _BUSY_S,
    ) -> None:
        """Open the file, or make it and its folder; bring an older one up to date.

        What was recorded before ``since`` (as of ``time.time()``) is not known, until it is recorded anew.
        ``busy_s`` is how long to wait for another process. Raises DatabaseError, with the way out, for a file
        that is damaged, is no database, is another program's, is from a newer Collage, or cannot be written.
        """
        self.path = Path(path) if path is not None else default_path()
        self._since = since
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DatabaseError(
                f"cannot make the folder of the measurement database {self.path}: {error.strerror}. "
                "Give a path in a folder you can write with --db."
            ) from error
        with self._errors():
            self._connection = sqlite3.connect(self.path, timeout=busy_s, isolation_level=None)
        try:
            with self._errors():
                self._check(migrations)  # before WAL mode, which would be a change to a file that is not ours
                self._use_wal(busy_s)
                self._migrate(migrations)
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. Closing twice does nothing."""
        self._connection.close()

    def remember(self, key: Key[T], make: Callable[[], T]) -> T:
        """The value recorded under the key, else what ``make`` returns, which is recorded."""
        known = key.look_up(self)
        if known is None:
            known = make()
            key.record(self, known)
        return known

    def get(self, keys: Iterable[KernelKey]) -> dict[KernelKey, Outcome]:
        """The outcomes known for these keys, in one query; keys never measured are left out.

        So are those that an earlier edition of the numerics gate let pass or rejected (see ``results.GATE``).
        """
        wanted = list(dict.fromkeys(keys))
        if not wanted:
            return {}
        with self._errors():
            asked = json.dumps([astuple(key) for key in wanted])
            rows = self._connection.execute(_GET, (asked, self._since, GATE)).fetchall()
        try:
            return {wanted[row[0]]: _outcome(row[1:]) for row in rows}
        except (TypeError, ValueError) as error:
            raise self._damaged(str(error)) from None

    def put(self, key: KernelKey, outcome: Outcome, description: str = "") -> None:
        """Record an outcome, replacing an earlier one; ``description`` is for people: ``conv2d+add+relu``."""
        if isinstance(outcome, Measurement):
            found: tuple[Any, ...] = (*astuple(outcome), None, None)
        else:
            found = (None, None, None, None, None, "", False, outcome.kind.value, outcome.message)
        self._write(_PUT, (*astuple(key), *found, GATE, time.time(), description))

    def get_network(self, key: NetworkKey) -> Timing | None:
        """The end-to-end timing known for that key, or None."""
        row = self._one(_GET_NETWORK, (*astuple(key), self._since))
        try:
            return None if row is None else Timing(*_numbers(row))
        except TypeError as error:
            raise self._damaged(str(error)) from None

    def put_network(self, key: NetworkKey, timing: Timing, description: str = "") -> None:
        """Record an end-to-end timing, replacing an earlier one."""
        self._write(_PUT_NETWORK, (*astuple(key), *astuple(timing), time.time(), description))

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is put inside the block is recorded all at once at its end, or not at all."""
        with self._errors():
            self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            with self._errors():
                self._connection.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise

    def run(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query on the tables themselves, for what looks after whole databases."""
        with self._errors():
            return self._connection.execute(query, values).fetchall()

    def _roll_back(self) -> None:
        """End a transaction that failed, which SQLite may have done by itself (where the disk is full)."""
        if self._connection.in_transaction:
            with suppress(sqlite3.Error):  # of a disk that fails; closing the file rolls back, too
                self._connection.execute("ROLLBACK")

    def get_fact(self, name: str, key: str) -> Json:
        """A small value recorded under a name (``"epsilon_us"``) and a key (machine, versions), or None."""
        row = self._one(_GET_FACT, (name, key, self._since))
        try:
            found: Json = None if row is None else json.loads(row[0])
        except (TypeError, ValueError):
            raise self._damaged(f"{row[0]!r:.80} is no value of {name}") from None
        return found

    def put_fact(self, name: str, key: str, value: Json) -> None:
        """Record a small value, replacing an earlier one."""
        self._write(
            "INSERT OR REPLACE INTO facts (name, key, value, created) VALUES (?, ?, ?, ?)",
            (name, key, json.dumps(value), time.time()),
        )

    def stats(self) -> Stats:
        """Counts, for ``collage db stats``."""
        with self._errors():
            return Stats(
                path=str(self.path),
                file_bytes=sum(each.stat().st_size for each in self.path.parent.glob(self.path.name + "*")),
                measured=self._counts("backend", "WHERE rejection IS NULL"),
                rejected=self._counts("backend", "WHERE rejection IS NOT NULL"),
                rejections=self._counts("rejection", "WHERE rejection IS NOT NULL"),
                hardware=self._counts("hardware", ""),
                networks=self._connection.execute("SELECT count(*) FROM networks").fetchone()[0],
                facts=self._connection.execute("SELECT count(*) FROM facts").fetchone()[0],
            )

    def _counts(self, column: str, where: str) -> dict[str, int]:
        query = f"SELECT {column}, count(*) FROM kernels {where} GROUP BY {column} ORDER BY {column}"
        return dict(self._connection.execute(query).fetchall())

    def _one(self, query: str, values: tuple[Any, ...]) -> Any:
        with self._errors():
            return self._connection.execute(query, values).fetchone()

    def _write(self, query: str, values: tuple[Any, ...]) -> None:
        with self._errors():
            self._connection.execute(query, values)

    def _use_wal(self, busy_s: float) -> None:
        """WAL mode, which SQLite may refuse with "locked" at once while another process opens the file."""
        deadline = time.monotonic() + busy_s
        while True:
            try:
                # Raises DatabaseError for a file that is no database: this is the first read of it.
                (mode,) = self._connection.execute("PRAGMA journal_mode = WAL").fetchone()
                break
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        if mode != "wal":
            log.debug("%s: journal mode %s instead of WAL", self.path, mode)
        # A power cut may lose the last seconds in this mode; a killed process loses nothing.
        self._connection.execute("PRAGMA synchronous = NORMAL")

    def _check(self, migrations: Sequence[Migration]) -> int:
        """The file's schema version. Raises DatabaseError when it is not ours, or newer than ours."""
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        (owner,) = self._connection.execute("PRAGMA application_id").fetchone()
        (tables,) = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if owner != APPLICATION_ID and (tables or version or owner):
            raise DatabaseError(
                f"{self.path} is a database of another program, not Collage's. Give another path with --db."
            )
        if version > len(migrations):
            raise DatabaseError(
                f"the measurement database {self.path} was written by a newer Collage (schema {version}; "
                f"this one knows {len(migrations)}). Upgrade Collage, or give another path with --db."
            )
        return int(version)

    def _migrate(self, migrations: Sequence[Migration]) -> None:
        if self._check(migrations) == len(migrations):
            return
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            version = self._check(migrations)  # another process may have migrated meanwhile
            for migration in migrations[version:]:
                migration(connection)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {len(migrations)}")
            connection.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn SQLite's errors into ours, each with the way out."""
        try:
            yield
        except UnicodeDecodeError as error:  # a name in a damaged schema, which the message would quote
            raise self._damaged(str(error)) from error
        except sqlite3.Error as error:
            text = str(error)
            if "unable to open" in text or "readonly" in text:
                hint = "cannot be opened for writing. Make it writable, or give another path with --db"
            elif "locked" in text:
                hint = "is locked by another process. Try again later, or give another path with --db"
            elif "full" in text or "disk I/O" in text:
                hint = "cannot be written: the disk is full or failing. Give another path with --db"
            elif isinstance(error, sqlite3.ProgrammingError):
                hint = "is used in the wrong way"
            else:
                raise self._damaged(f"SQLite: {text}") from error
            raise DatabaseError(f"the measurement database {self.path} {hint} (SQLite: {text}).") from error

    def _damaged(self, detail: str) -> DatabaseError:
        return DatabaseError(
            f"the measurement database {self.path} is damaged or no database. Delete it to start afresh, or give "
            f"another path with --db ({detail})."
        )


_KEY = "digest, backend, backend_version, settings, threads, hardware, tvm_version"
_OUTCOME = "median_us, noise_us, min_us, repeats, max_error, tuning, finite_only, rejection, message"
_MATCHES = " AND ".join(
    f"{column} = json_extract(wanted.value, '$[{position}]')"
    for position, column in enumerate(_KEY.split(", "))
)
# CROSS JOIN keeps SQLite to this order: one look-up in the primary key for each wanted key.
_GET = (
    f"SELECT wanted.key, {_OUTCOME} FROM json_each(?) AS wanted CROSS JOIN kernels ON {_MATCHES} "
    "AND created >= ? AND gate = ?"
)
_PUT = (
    f"INSERT OR REPLACE INTO kernels ({_KEY}, {_OUTCOME}, gate, created, description) "
    f"VALUES ({', '.join('?' * 19)})"
)
_TIMING = "median_us, noise_us, min_us, p90_us, repeats"
_NETWORK_KEY = "graph, placement, threads, hardware, versions"
_GET_NETWORK = (
    f"SELECT {_TIMING} FROM networks "
    "WHERE graph = ? AND placement = ? AND threads = ? AND hardware = ? AND versions = ? AND created >= ?"
)
_GET_FACT = "SELECT value FROM facts WHERE name = ? AND key = ? AND created >= ?"
_PUT_NETWORK = (
    f"INSERT OR REPLACE INTO networks ({_NETWORK_KEY}, {_TIMING}, created, description) "
    f"VALUES ({', '.join('?' * 12)})"
)


def _outcome(row: Sequence[Any]) -> Outcome:
    *numbers, tuning, finite_only, rejection, message = row
    if rejection is None:
        median_us, noise_us, min_us, repeats, max_error = _numbers(numbers)
        return Measurement(median_us, noise_us, min_us, repeats, max_error, tuning, bool(finite_only))
    return Rejection(RejectionKind(rejection), message)


def _numbers(row: Sequence[Any]) -> Sequence[Any]:
    """The row; TypeError where a damaged page has made something else of a number."""
    for each in row:
        if not isinstance(each, (int, float)):
            raise TypeError(f"{each!r:.80} is no number")
    return row
