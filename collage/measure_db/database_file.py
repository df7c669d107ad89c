"""An SQLite file that is Collage's: it is opened, checked, brought up to date, and its errors tell the way out."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

from collage.core.surroundings import cache_folder
from collage.errors import DatabaseError, DatabaseLockedError
from collage.measure_db.migrations import APPLICATION_ID, MIGRATIONS

log = logging.getLogger(__name__)

Migration: TypeAlias = Callable[[sqlite3.Connection], None]
Opened = TypeVar("Opened", bound="DatabaseFile")

_BUSY_S = 30.0
_MAGIC = b"SQLite format 3\0"
_WAITS = (5, 6)
"""SQLite's results where another process has locked the file (``SQLITE_BUSY``, ``SQLITE_LOCKED``)."""


def default_path() -> Path:
    """``measurements.sqlite`` in the cache folder. Raises DatabaseError if there is none."""
    try:
        return cache_folder() / "measurements.sqlite"
    except (OSError, RuntimeError) as error:
        raise DatabaseError(
            f"there is no folder for the measurement database ({error}). Set HOME, or give a file with --db."
        ) from error


class DatabaseFile:
    """An open file. Use it in the thread that opened it; other processes may use the file meanwhile.

    All methods raise DatabaseError, with the way out, when the file is damaged, locked for too long, or cannot be
    written.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        since: float = 0.0,
        migrations: Sequence[Migration] = MIGRATIONS,
        busy_s: float = _BUSY_S,
    ) -> None:
        """Open the file, or make it and its folder; bring an older one up to date.

        What was recorded before ``since`` (in seconds, as of ``time.time()``) is not known until it is recorded anew.
        ``busy_s`` is how many seconds to wait for another process. Raises DatabaseError for a file that is damaged, is
        no database, is another program's, is from a newer Collage, or cannot be written.
        """
        self.path = Path(path) if path is not None else default_path()
        self._since = since
        if os.path.exists(self.path) and not os.path.isfile(self.path):
            raise DatabaseError(f"{self.path} is no file. Give a file with --db for the measurement database.")
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
                # WAL mode comes after the check, since it would be a change to a file that is not ours.
                self._check(migrations)
                self._use_wal(busy_s)
                self._migrate(migrations)
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self: Opened) -> Opened:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. Closing twice does nothing."""
        self._connection.close()

    def go_on_in_memory(self) -> None:
        """Be a database in memory from now on, with all that is in the file as far as that can be read.

        It is for a file that takes no writes any more, as on a full disk. What is recorded from now on is known until
        the database is closed, and is not kept.
        """
        memory = DatabaseFile(":memory:")
        try:
            self._connection.backup(memory._connection, progress=_refuse_to_wait)
            whole = memory.run("PRAGMA quick_check(1)") == [("ok",)]
        except sqlite3.Error as error:
            log.info("%s cannot be read: %s", self.path, error)
            whole = False
        if not whole:
            memory.close()
            memory = DatabaseFile(":memory:")
        self._connection, memory._connection = memory._connection, self._connection
        memory.close()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Record what is put inside the block all at once at its end, or not at all."""
        try:  # Ctrl-C while it waits for another process comes after the transaction has begun
            with self._errors():
                self._connection.execute("BEGIN IMMEDIATE")
            yield
            with self._errors():
                self._connection.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise

    def run(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement, and return its rows."""
        with self._errors():
            return self._connection.execute(query, values).fetchall()

    def each(self, query: str) -> Iterator[tuple[Any, ...]]:
        """The rows of a query one by one: those before a page that cannot be read come in any case."""
        with self._errors():
            yield from self._connection.execute(query)

    def _roll_back(self) -> None:
        """End a transaction that failed, unless SQLite has ended it (as it does where the disk is full)."""
        if self._connection.in_transaction:
            with suppress(sqlite3.Error):  # the disk fails; closing the file rolls back, too
                self._connection.execute("ROLLBACK")

    def _use_wal(self, busy_s: float) -> None:
        """Switch to WAL mode, which SQLite may refuse with "locked" at once while another process opens the file."""
        deadline = time.monotonic() + busy_s
        while True:
            try:
                # This is the first read of the file, so it raises DatabaseError for one that is no database.
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
        # One statement sees one state of the file, which another process may be making.
        version, owner, tables = self._connection.execute(
            "SELECT user_version, application_id, (SELECT count(*) FROM sqlite_master) "
            "FROM pragma_user_version, pragma_application_id"
        ).fetchone()
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
            if "locked" in text:
                raise DatabaseLockedError(
                    f"the measurement database {self.path} is locked by another process. Try again later, or give "
                    f"another path with --db (SQLite: {text})."
                ) from error
            if "unable to open" in text or "readonly" in text:
                hint = "cannot be opened for writing. Make it writable, or give another path with --db"
            elif "full" in text or "disk I/O" in text:
                hint = "cannot be written: the disk is full or failing. Give another path with --db"
            elif isinstance(error, sqlite3.ProgrammingError):
                hint = "is used in the wrong way"
            else:
                raise self._damaged(f"SQLite: {text}") from error
            raise DatabaseError(f"the measurement database {self.path} {hint} (SQLite: {text}).") from error

    def _damaged(self, detail: str) -> DatabaseError:
        """The error for a file that does not hold what it should."""
        if not self._is_sqlite():
            return DatabaseError(f"{self.path} is no database of measurements; give another path with --db.")
        return DatabaseError(
            f"the measurement database {self.path} is damaged or no database. Delete it to start afresh, or give "
            f"another path with --db ({detail})."
        )

    def _is_sqlite(self) -> bool:
        """Whether the file begins as those of SQLite do; also where it cannot be read."""
        try:
            with open(self.path, "rb") as stream:
                return stream.read(len(_MAGIC)) == _MAGIC
        except OSError:
            return True


def _refuse_to_wait(status: int, remaining: int, total: int) -> None:
    """End a copy that would wait for another process for as long as that has locked the file."""
    if status in _WAITS:
        raise sqlite3.OperationalError("the database is locked")
