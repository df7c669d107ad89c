"""``collage db``: the group, and the commands that move and remove measurements; ``db_contents`` shows them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from collage.cli.console import print_json, say
from collage.cli.db_contents import existing, list_rows, stats, this_machine, why
from collage.cli.options import DB_OPTION, JSON_OPTION, Number, flag, option
from collage.errors import DatabaseError, to_paste

if TYPE_CHECKING:
    from collage.measure_db.database import Database
    from collage.measure_db.exchange import Exchange

_FILE = click.Path(path_type=Path, dir_okay=False)
_DAY_S = 86400.0
_SHOWN = 20


@click.group()
def db() -> None:
    """The database of measurements: what is in it, and how it travels.

    A compile measures each kernel once and keeps the result in this file, so that the next compile measures nothing.
    Two databases of the same kind of machine can be merged; of two measurements the more certain one stays.

    \b
    collage db stats                      how much is in it
    collage db why "conv2d + relu"        what was measured for such a region
    collage db export team.sqlite         write a file to give away
    collage db import team.sqlite         take what this machine can use
    """


@db.command("export")
@click.argument("file", metavar="FILE", type=_FILE)
@DB_OPTION
@flag("--usable", help="Write only measurements that a compile on this machine would use today.")
@flag("--force", help="Replace FILE if it exists.")
@JSON_OPTION
def export_rows(file: Path, db: Path | None, usable: bool, force: bool, as_json: bool) -> None:
    """Write the database to FILE, to be given to others.

    It holds digests of operators, shapes, times, versions, the name of the CPU and the names of the models that were
    compiled. It holds no weights and no paths.

    \b
    Examples:
      collage db export team.sqlite
      collage db export this-machine.sqlite --usable
    """
    from collage.measure_db.exchange import export

    with existing(db) as database:
        found = export(database, file, replace=force, **(_usable() if usable else {}))
    if as_json:
        print_json({"file": str(file), **asdict(found)})
        return
    _say_taken(found)
    say(f"wrote {file}")


@db.command("import")
@click.argument("files", metavar="FILE...", type=_FILE, nargs=-1, required=True)
@DB_OPTION
@flag("--all", "everything", help="Take measurements of other machines and versions, too.")
@JSON_OPTION
def import_rows(files: tuple[Path, ...], db: Path | None, everything: bool, as_json: bool) -> None:
    """Take measurements from FILEs that others made, as far as this machine can use them.

    They must be of the same CPU and of the library versions that are installed here. What others found out about right
    and wrong results is not taken: this machine checks that itself. Nothing in the files is run.

    \b
    Examples:
      collage db import team.sqlite
    """
    with _merged(db, files, {} if everything else _usable(), quiet=as_json) as (_, results):
        pass
    if as_json:
        print_json({"files": {file: asdict(found) for file, found in results.items()}})
    useless = [file for file, found in results.items() if found.refused and not found.offered]
    if useless:
        raise DatabaseError(
            f"nothing in {', '.join(useless)} can be used on this machine ({this_machine()}) with these versions. "
            "`--all` takes it nevertheless."
        )


@db.command()
@click.argument("target", metavar="INTO", type=_FILE)
@click.argument("files", metavar="FROM...", type=_FILE, nargs=-1, required=True)
@JSON_OPTION
def merge(target: Path, files: tuple[Path, ...], as_json: bool) -> None:
    """Add what is in the databases FROM to the database INTO, which is made if there is none.

    Of two measurements of the same kernel the one with less noise stays. Measurements of different machines and
    versions do not meet: each compile uses those of its own. The order of the files does not matter. All are read
    before anything is taken, and what is taken of a file is all of it or nothing.

    \b
    Examples:
      collage db merge team.sqlite alpha.sqlite beta.sqlite
    """
    if twice := [str(file) for file in files if file.resolve() == target.resolve()]:
        raise DatabaseError(f"{twice[0]} cannot be merged into itself.")
    with _merged(target, files, {}, quiet=as_json) as (database, results):
        machines = list(database.stats().hardware)
    if as_json:
        print_json({"file": str(target), "files": {f: asdict(found) for f, found in results.items()}})
    elif len(machines) > 1:
        say(f"{target} has measurements of {len(machines)} machines now: {'; '.join(machines)}")


@db.command()
@DB_OPTION
@option("--older-than", type=Number(min=0), metavar="DAYS", help="Remove older measurements, too.")
@flag("--other-machines", help="Remove measurements of other machines, too.")
@flag("--not-installed", help="Remove measurements of library versions that are not installed, too.")
@flag("--dry-run", help="Show what would be removed, and remove nothing.")
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
    _say_reasons(removed, "would be removed" if dry_run else "removed")
    say(f"{left} measurements of kernels are in the database" + ("" if removed else "; nothing to remove"))


@db.command()
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


for _command in (stats, list_rows, why):
    db.add_command(_command)


def installed_versions() -> dict[str, str]:
    """The version of each backend that can be used here, as keys of measurements have it."""
    from collage.api import default_registry
    from collage.backends.base import BUILT_IN
    from collage.backends.source_digest import keyed_version

    registry = default_registry()
    found = {**registry.availability(), **{name: registry[name].available() for name in BUILT_IN}}
    return {name: keyed_version(registry[name], here.version) for name, here in found.items() if here}


def _usable() -> dict[str, Any]:
    """The option of a merge that takes only what this machine can use."""
    from collage.measure_db.exchange import usable_here

    return {"wanted": usable_here(this_machine(), installed_versions())}


@contextmanager
def _merged(
    target: Path | None, files: Sequence[Path], options: Mapping[str, Any], *, quiet: bool
) -> Iterator[tuple[Database, dict[str, Exchange]]]:
    """The database ``target``, by default the user's, with the rows of the files, and what came of each file.

    Raises DatabaseError for the first file that cannot be read, before anything is taken.
    """
    from collage.measure_db.database import Database
    from collage.measure_db.exchange import merge
    from collage.measure_db.rows import snapshot

    results: dict[str, Exchange] = {}
    with ExitStack() as stack:
        sources = [(file, stack.enter_context(snapshot(file))) for file in files]
        database = stack.enter_context(Database(target))
        for file, source in sources:
            found = results[str(file)] = merge(database, source, **options)
            if not quiet:
                say(f"{file}:")
                _say_taken(found)
        yield database, results


def _say_taken(found: Exchange) -> None:
    """Print what a merge took, and what not."""
    say(
        f"{found.taken} taken, {found.same} already there, {found.less_certain} less certain than what is there"
    )
    _say_reasons(found.refused, "not taken")


def _say_reasons(reasons: Mapping[str, int], what: str) -> None:
    """Print how many rows there were for each reason, most first."""
    for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0])):
        say(f"{count} {what}: {reason}")
