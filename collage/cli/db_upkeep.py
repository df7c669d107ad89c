"""``collage db prune`` and ``collage db verify``."""

from __future__ import annotations

import time
from pathlib import Path

import click

from collage.cli.console import print_json, say
from collage.cli.db_options import existing, installed_versions, say_reasons, this_machine
from collage.cli.options import DB_OPTION, JSON_OPTION, Number
from collage.errors import DatabaseError, to_paste

_DAY_S = 86400.0
_SHOWN = 20


@click.command()
@DB_OPTION
@click.option("--older-than", type=Number(min=0), metavar="DAYS", help="Also what was measured before that.")
@click.option("--other-machines", is_flag=True, help="Also what was measured on other machines.")
@click.option(
    "--not-installed", is_flag=True, help="Also what is of library versions that are not installed."
)
@click.option("--dry-run", is_flag=True, help="Tell what would be removed, and remove nothing.")
@JSON_OPTION
def prune(
    db: Path | None,
    older_than: float | None,
    other_machines: bool,
    not_installed: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Remove measurements that no compile uses any more.

    These are the ones that passed an earlier edition of the numerics gate. The options add others.

    \b
    Examples:
      collage db prune --dry-run
      collage db prune --not-installed --older-than 180
    """
    from collage.measure_db.upkeep import PruneRule
    from collage.measure_db.upkeep import prune as prune_rows

    rule = PruneRule(
        before=None if older_than is None else time.time() - older_than * _DAY_S,
        hardware=this_machine() if other_machines else None,
        versions=installed_versions() if not_installed else None,
    )
    with existing(db) as database:
        removed = prune_rows(database, rule, dry_run=dry_run)
        left = sum(map(sum, (database.stats().measured.values(), database.stats().rejected.values())))
    if as_json:
        print_json({"removed": removed, "kernels_left": left, "dry_run": dry_run})
        return
    say_reasons(removed, "would be removed" if dry_run else "removed")
    say(f"{left} measurements of kernels are in the database" + ("" if removed else "; nothing to remove"))


@click.command()
@DB_OPTION
@JSON_OPTION
def verify(db: Path | None, as_json: bool) -> None:
    """Check the whole file: SQLite's structures, and that each row is one that Collage writes.

    \b
    Examples:
      collage db verify --db team.sqlite
    """
    from collage.measure_db.upkeep import verify as problems_of

    with existing(db) as database:
        path, problems = database.path, problems_of(database)
    if as_json:
        print_json({"file": str(path), "problems": list(problems)})
    else:
        for problem in problems[:_SHOWN]:
            say(problem)
    if problems:
        raise DatabaseError(
            f"{path} has {len(problems)} problems. {to_paste('db', 'merge', 'NEW.sqlite', path)} takes what can still "
            "be read."
        )
    if not as_json:
        say(f"{path} is whole")
