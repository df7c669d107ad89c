"""The command ``collage db``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from collage.cli.console import print_json, print_rich, say
from collage.cli.options import DB_OPTION, JSON_OPTION
from collage.core.printable import printable
from collage.errors import DatabaseError


@click.group()
def db() -> None:
    """Look at the database of measurements."""


@db.command()
@DB_OPTION
@JSON_OPTION
def stats(db: Path | None, as_json: bool) -> None:
    """Count the measurements in the database.

    \b
    Examples:
      collage db stats
      collage db stats --db team.sqlite --json
    """
    from collage.measure_db.database import Database
    from collage.measure_db.database_file import default_path

    path = db or default_path()
    if not path.exists():  # opening would create it
        raise DatabaseError(f"there is no measurement database at {path} yet: `collage compile` makes it.")
    with Database(path) as database:
        found = database.stats()
    if as_json:
        print_json(asdict(found))
        return
    from rich.text import Text

    from collage.report.show import size
    from collage.report.show_terminal import plain_table

    measured, rejected = _by_name(found.measured), _by_name(found.rejected)
    table = plain_table()
    table.add_column("backend")
    table.add_column("measured", justify="right")
    table.add_column("rejected", justify="right")
    for name in sorted({*measured, *rejected}):
        table.add_row(Text(name), str(measured.get(name, 0)), str(rejected.get(name, 0)))
    say(f"{found.path} ({size(found.file_bytes)})")
    print_rich(table)
    reasons = ", ".join(f"{count} {kind}" for kind, count in _by_name(found.rejections).items())
    say(f"rejected: {reasons}" if reasons else "nothing rejected")
    say(f"whole networks: {found.networks}; facts: {found.facts}")
    for name, count in _by_name(found.hardware).items():
        say(f"{count} on {name}")


def _by_name(counts: Mapping[Any, int]) -> dict[str, int]:
    """Counts by printable name: the database may come from others, and SQLite's columns may hold anything."""
    found: dict[str, int] = {}
    for name, count in counts.items():
        text = printable(str(name))
        found[text] = found.get(text, 0) + count
    return found
