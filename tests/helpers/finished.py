"""What tests do with finished compiles in a database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from collage.compiler.record import FINISHED
from collage.measure.worker.process import WorkerProcess, Workers

SEARCHES = ("collage.compiler.placing.placed", "collage.compiler.placing.place_within")
"""The searches that place a model."""


def rows(database: Path, statement: str) -> list[tuple[Any, ...]]:
    """What a statement gives, which may change the database."""
    with closing(sqlite3.connect(database)) as connection, connection:
        return connection.execute(statement).fetchall()


def finished_in(database: Path) -> int:
    """The number of finished compiles that the database knows."""
    ((count,),) = rows(database, f"SELECT count(*) FROM facts WHERE name = '{FINISHED.name}'")
    return int(count)


def forget_finished(database: Path) -> None:
    """Make the next compile search again, with all measurements that are known."""
    if database.exists():
        rows(database, f"DELETE FROM facts WHERE name = '{FINISHED.name}'")


@contextmanager
def nothing_but_recalled() -> Iterator[None]:
    """A compile in here fails where it starts a worker, or searches."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WorkerProcess, "__init__", lambda *_, **__: pytest.fail("a worker was started"))
        patch.setattr(Workers, "lend", lambda *_, **__: pytest.fail("a worker was asked"))
        patch.setattr(Workers, "prefetch", lambda *_: pytest.fail("a worker was started"))
        for search in SEARCHES:
            patch.setattr(search, lambda *_, **__: pytest.fail("the model was placed"))
        yield
