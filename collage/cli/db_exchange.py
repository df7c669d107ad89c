"""``collage db export``, ``collage db import`` and ``collage db merge``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from collage.cli.console import print_json, say
from collage.cli.db_options import existing, installed_versions, tell, this_machine
from collage.cli.options import DB_OPTION, JSON_OPTION
from collage.errors import DatabaseError

if TYPE_CHECKING:
    from collage.measure_db.database import Database

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command("export")
@click.argument("file", metavar="FILE", type=_FILE)
@DB_OPTION
@click.option("--usable", is_flag=True, help="Only what a compile on this machine would use today.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
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
    from collage.measure_db.exchange import export, usable_here

    with existing(db) as database:
        options = {"wanted": usable_here(this_machine(), installed_versions())} if usable else {}
        found = export(database, file, replace=force, **options)
    if as_json:
        print_json({"file": str(file), **asdict(found)})
        return
    tell(found)
    say(f"wrote {file}")


@click.command("import")
@click.argument("files", metavar="FILE...", type=_FILE, nargs=-1, required=True)
@DB_OPTION
@click.option(
    "--all", "everything", is_flag=True, help="Take what other machines and versions measured, too."
)
@JSON_OPTION
def import_rows(files: tuple[Path, ...], db: Path | None, everything: bool, as_json: bool) -> None:
    """Take measurements from FILEs that others made, as far as this machine can use them.

    They must be of the same CPU and of the library versions that are installed here. What others found out about right
    and wrong results is not taken: this machine checks that itself. Nothing in the files is run.

    \b
    Examples:
      collage db import team.sqlite
    """
    from collage.measure_db.database import Database
    from collage.measure_db.exchange import merge, usable_here

    filters = {} if everything else {"wanted": usable_here(this_machine(), installed_versions())}
    results = {}
    with _sources(files) as sources, Database(db) as database:
        for file, source in sources:
            found = results[str(file)] = merge(database, source, **filters)
            if not as_json:
                say(f"{file}:")
                tell(found)
    if as_json:
        print_json({"files": {file: asdict(found) for file, found in results.items()}})
    useless = [file for file, found in results.items() if found.refused and not found.offered]
    if useless:
        raise DatabaseError(
            f"nothing in {', '.join(useless)} can be used on this machine ({this_machine()}) with these versions. "
            "`--all` takes it nevertheless."
        )


@click.command()
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
    from collage.measure_db.database import Database
    from collage.measure_db.exchange import merge as merge_rows

    if twice := [str(file) for file in files if file.resolve() == target.resolve()]:
        raise DatabaseError(f"{twice[0]} cannot be merged into itself.")
    results = {}
    with _sources(files) as sources, Database(target) as database:
        for file, source in sources:
            found = results[str(file)] = merge_rows(database, source)
            if not as_json:
                say(f"{file}:")
                tell(found)
        machines = list(database.stats().hardware)
    if as_json:
        print_json({"file": str(target), "files": {f: asdict(found) for f, found in results.items()}})
    elif len(machines) > 1:
        say(f"{target} has measurements of {len(machines)} machines now: {'; '.join(machines)}")


@contextmanager
def _sources(files: Sequence[Path]) -> Iterator[list[tuple[Path, Database]]]:
    """The databases in these files as they are now. Raises DatabaseError for the first that cannot be read."""
    from collage.measure_db.rows import snapshot

    with ExitStack() as stack:
        yield [(file, stack.enter_context(snapshot(file))) for file in files]
