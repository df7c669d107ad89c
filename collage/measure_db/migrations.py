"""The database's schema, as steps. Migration ``n`` changes a database from version n to n + 1.

Steps that have been released are never changed; a new version appends one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

APPLICATION_ID = 0x436C6C67
"""SQLite's mark for the program that a file belongs to: "Cllg"."""


def _first(connection: sqlite3.Connection) -> None:
    connection.execute(
        """CREATE TABLE kernels (
            digest TEXT NOT NULL, backend TEXT NOT NULL, backend_version TEXT NOT NULL,
            settings TEXT NOT NULL, threads INTEGER NOT NULL, hardware TEXT NOT NULL,
            tvm_version TEXT NOT NULL,
            median_us REAL, noise_us REAL, min_us REAL, repeats INTEGER, max_error REAL,
            rejection TEXT, message TEXT,
            created REAL NOT NULL, description TEXT NOT NULL,
            PRIMARY KEY (digest, backend, backend_version, settings, threads, hardware, tvm_version)
        ) WITHOUT ROWID"""
    )
    connection.execute(
        """CREATE TABLE networks (
            graph TEXT NOT NULL, placement TEXT NOT NULL, threads INTEGER NOT NULL, hardware TEXT NOT NULL,
            versions TEXT NOT NULL,
            median_us REAL NOT NULL, noise_us REAL NOT NULL, min_us REAL NOT NULL, p90_us REAL NOT NULL,
            repeats INTEGER NOT NULL,
            created REAL NOT NULL, description TEXT NOT NULL,
            PRIMARY KEY (graph, placement, threads, hardware, versions)
        ) WITHOUT ROWID"""
    )
    connection.execute(
        """CREATE TABLE facts (
            name TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, created REAL NOT NULL,
            PRIMARY KEY (name, key)
        ) WITHOUT ROWID"""
    )


def _tuning(connection: sqlite3.Connection) -> None:
    connection.execute("ALTER TABLE kernels ADD COLUMN tuning TEXT NOT NULL DEFAULT ''")


def _gate(connection: sqlite3.Connection) -> None:
    """Outcomes so far were made by edition 1 of the gate. They stay in the file, and are not looked up."""
    connection.execute("ALTER TABLE kernels ADD COLUMN finite_only INTEGER NOT NULL DEFAULT 0")
    connection.execute("ALTER TABLE kernels ADD COLUMN gate INTEGER NOT NULL DEFAULT 1")


def _busy(connection: sqlite3.Connection) -> None:
    """How busy the machine was is not known of what was measured so far."""
    connection.execute("ALTER TABLE kernels ADD COLUMN busy REAL")
    connection.execute("ALTER TABLE networks ADD COLUMN busy REAL")
    connection.execute("ALTER TABLE facts ADD COLUMN busy REAL")


def _slower(connection: sqlite3.Connection) -> None:
    """Kernels that were let go because a rival of this time is faster (``results.Slower``)."""
    connection.execute("ALTER TABLE kernels ADD COLUMN rival_us REAL")


def _gpu(connection: sqlite3.Connection) -> None:
    """The clocks of a GPU (``core.nvml.Clocks`` as JSON), and what it had left of its memory where that was short."""
    connection.execute("ALTER TABLE kernels ADD COLUMN clocks TEXT")
    connection.execute("ALTER TABLE kernels ADD COLUMN free_bytes INTEGER")


MIGRATIONS: Sequence[Callable[[sqlite3.Connection], None]] = (_first, _tuning, _gate, _busy, _slower, _gpu)
