"""``collage db``: what is in a database, and how measurements move and are removed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from collage.cli.completion import complete_backends
from collage.cli.console import print_json, print_table, say
from collage.cli.options import DB_OPTION, JSON_OPTION, Count, Number, flag, option
from collage.core.printable import printable
from collage.errors import DatabaseError, to_paste, unknown_names

if TYPE_CHECKING:
    from collage.measure_db.database import Database
    from collage.measure_db.exchange import Exchange
    from collage.measure_db.listing import RowFilter
    from collage.measure_db.rows import Row

_CLOCKS = "GPU's MHz"
_NUMBERS = ("us", "noise", "busy", "threads")
_BACKEND_OPTION = click.option(
    "--backend",
    metavar="NAME",
    default="",
    shell_complete=complete_backends,
    help="Show only this backend's measurements.",
)
_ALL_OPTION = flag(
    "--all",
    "everything",
    help="Show measurements of other machines and of earlier editions of the numerics gate, too.",
)


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
    with existing(db) as database:
        found = database.stats()
    if as_json:
        print_json(asdict(found))
        return
    from collage.report.show import size

    measured, rejected = _by_name(found.measured), _by_name(found.rejected)
    names = sorted({*measured, *rejected})
    rows = ((name, str(measured.get(name, 0)), str(rejected.get(name, 0))) for name in names)
    say(f"{found.path} ({size(found.file_bytes)})")
    print_table(("backend", "measured", "rejected"), rows, right=("measured", "rejected"))
    reasons = ", ".join(f"{count} {kind}" for kind, count in _by_name(found.rejections).items())
    say(f"rejected: {reasons}" if reasons else "nothing rejected")
    say(f"whole networks: {found.networks}; facts: {found.facts}")
    for name, count in _by_name(found.hardware).items():
        say(f"{count} on {name}")


@db.command("list")
@DB_OPTION
@_BACKEND_OPTION
@click.option(
    "--rejected",
    "only",
    flag_value="rejected",
    default="",
    help="Show only rejected kernels, with the reasons.",
)
@option("--limit", type=Count(min=1), metavar="N", default=30, help="How many at most.")
@_ALL_OPTION
@JSON_OPTION
def list_rows(db: Path | None, backend: str, only: str, limit: int, everything: bool, as_json: bool) -> None:
    """List the newest measurements.

    The column "busy" tells how much of the machine others had meanwhile. A mark (!) beside a GPU's clocks says that
    they were held back, and not by the GPU's limit of power; such a measurement is made again when the clocks are high.

    \b
    Examples:
      collage db list
      collage db list --backend tvm --rejected
    """
    from collage.measure_db.listing import latest

    with existing(db) as database:
        rows = latest(database, _filter(database, backend, everything, only), limit)
        clocks = _clocks(database, rows)
    if as_json:
        print_json({"rows": [_as_json(row) for row in rows]})
        return
    if not rows:
        say("nothing of that kind is in the database" + ("" if everything else " for this machine (see --all)"))
        return
    names = "when", "backend", "operators", "variant and settings", "threads", "us", "noise", "busy"
    table = [(_date(row["created"]), row["backend"], row["description"], *_figures(row, clocks)) for row in rows]
    print_table((*names, *[_CLOCKS] * bool(clocks)), table, right=_NUMBERS)


@db.command()
@click.argument("text", metavar="OPERATORS")
@DB_OPTION
@_BACKEND_OPTION
@_ALL_OPTION
@JSON_OPTION
def why(text: str, db: Path | None, backend: str, everything: bool, as_json: bool) -> None:
    """Show all candidates that were measured for regions whose operators hold OPERATORS.

    The fastest comes first, then what lost a race, and what was rejected comes last, with the reason. A digest of a
    region, as in the output of --json, selects that region.

    \b
    Examples:
      collage db why conv2d
      collage db why "conv2d + add + relu" --backend onednn --json
    """
    from collage.measure_db.listing import candidates

    with existing(db) as database:
        regions = candidates(database, text, _filter(database, backend, everything))
        clocks = _clocks(database, [row for rows in regions.values() for row in rows])
    if not regions:
        hint = "" if everything else " on this machine (see --all)"
        raise DatabaseError(f"no region with {text!r} was measured{hint}. `collage db list` shows what there is.")
    if as_json:
        print_json({"regions": {digest: [_as_json(row) for row in rows] for digest, rows in regions.items()}})
        return
    for digest, rows in regions.items():
        say(f"{rows[0]['description']}  ({digest[:12]})")
        names = "backend", "variant and settings", "threads", "us", "noise", "busy"
        table = []
        best: dict[int, float] = {}
        for row in rows:
            if not row.rejected and not row.outrun:
                best.setdefault(row["threads"], row["median_us"])
            compared = _compared(row, best.get(row["threads"]))
            table.append((row["backend"], *_figures(row, clocks), compared, _date(row["created"])))
        print_table((*names, *[_CLOCKS] * bool(clocks), "", "when"), table, right=_NUMBERS)
        say("")


def existing(path: Path | None) -> Database:
    """The database at the path, by default the user's. Raises DatabaseError if there is none."""
    from collage.measure_db.database import Database
    from collage.measure_db.database_file import default_path

    path = path or default_path()
    if not path.exists():  # opening would create it
        raise DatabaseError(f"there is no measurement database at {path} yet: `collage compile` makes it.")
    return Database(path)


def this_machine() -> str:
    """The hardware of this machine's measurements, without the mark of a CPU quota that more threads exceed."""
    from collage.kernel.target import host

    return host().measured_on


def _filter(database: Database, backend: str, everything: bool, only: str = "") -> RowFilter:
    """The rows to show. Raises UsageError for a backend that is neither registered nor in the database."""
    from collage.api import default_registry
    from collage.backends.base import BUILT_IN
    from collage.measure_db.listing import RowFilter

    found = database.stats()
    known = {*default_registry().names, *BUILT_IN, *_by_name(found.measured), *_by_name(found.rejected)}
    if backend and backend not in known:
        raise unknown_names("backend", [backend], known)
    return RowFilter(backend, "" if everything else this_machine(), only, old=everything)


def _figures(row: Row, clocks: Mapping[int, str]) -> tuple[str, ...]:
    """Settings, threads, time (of a kernel that lost a race a lower bound), noise, and the load of the machine.

    Of a rejected kernel it gives the reason. ``clocks``, if there are any, come last.
    """
    settings, threads = str(row["settings"])[:120], str(row["threads"])
    busy = "" if row["busy"] is None else f"{row['busy']:.0%}"
    if row.rejected:
        free = "" if row["free_bytes"] is None else f", with {row['free_bytes'] >> 20} MiB free"
        found = f"{row['rejection']}{free}: {row['message']}"[:120], threads, "-", "", ""
    elif row.outrun:
        found = settings, threads, f"> {row['min_us']:.1f}", "", busy
    else:
        found = settings, threads, f"{row['median_us']:.1f}", f"{row.relative_noise:.1%}", busy
    return (*found, *([clocks.get(id(row), "")] if clocks else []))


def _compared(row: Row, best_us: float | None) -> str:
    """What a row loses to the fastest one that was measured to the end, with the same number of threads."""
    if row.outrun:
        return "lost a race" if row["repeats"] else "not measured: known times ruled it out"
    if row.rejected or best_us is None:
        return ""
    us = row["median_us"]
    return "fastest" if us <= best_us else f"slower by {us / max(best_us, 1e-9) - 1:.0%}"


def _clocks(database: Database, rows: Sequence[Row]) -> dict[int, str]:
    """The clocks of a GPU's multiprocessors and memory by the id of a row, if they were noted.

    A mark says that they were held back.
    """
    from collage.measure_db.database import read_clocks
    from collage.measure_db.doubt import held_back

    found: dict[int, str] = {}
    best = {name: database.best_clocks(name) for name in {str(r["hardware"]) for r in rows if r["clocks"]}}
    for row in rows:
        clocks = read_clocks(row["clocks"])
        if clocks is not None:
            mark = "!" if held_back(clocks, best[str(row["hardware"])]) else ""
            capped = " by power" if clocks.power_capped else ""
            found[id(row)] = f"{clocks.sm_mhz}/{clocks.memory_mhz}{mark}{capped}"
    return found


def _date(created: float) -> str:
    """A time as of ``time.time()`` as a local date and time; years have at most four digits."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(min(created, 32503680000.0)))


def _as_json(row: Row) -> dict[str, Any]:
    return dict(zip(row.table.columns, row.values, strict=True))


def _by_name(counts: Mapping[Any, int]) -> dict[str, int]:
    """Counts by printable name: the database may come from others, and SQLite's columns may hold anything."""
    found: dict[str, int] = {}
    for name, count in counts.items():
        text = printable(str(name))
        found[text] = found.get(text, 0) + count
    return found


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
    say(f"{found.taken} taken, {found.same} already there, {found.less_certain} less certain than what is there")
    _say_reasons(found.refused, "not taken")


def _say_reasons(reasons: Mapping[str, int], what: str) -> None:
    """Print how many rows there were for each reason, most first."""
    for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0])):
        say(f"{count} {what}: {reason}")
