"""Looking after a database: removing what no compile uses any more, and checking the whole file."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from collage.errors import DatabaseError
from collage.kernel.target import hardware_of
from collage.measure_db.certainty import race_of
from collage.measure_db.database import Database
from collage.measure_db.results import GATE
from collage.measure_db.rows import NOT_OURS, Row, missing_version, rows_of
from collage.measure_db.tables import FACTS, KERNELS, NETWORKS, TABLES

log = logging.getLogger(__name__)

OLD_GATE = "of an earlier edition of the numerics gate"

_MOST_PROBLEMS = 20


@dataclass(frozen=True)
class PruneRule:
    """What is removed beside rows of earlier editions of the numerics gate, and rows that Collage cannot have written.

    None means that it does not matter.

    ``before`` is a time as of ``time.time()``, ``hardware`` the only one to keep (Target.measured_on, with any CPU
    quota), ``versions`` the only ones to keep, by backend.
    """

    before: float | None = None
    hardware: str | None = None
    versions: Mapping[str, str] | None = None

    def why(self, row: Row) -> str:
        """Why the row is removed, or ""."""
        if row.problem():
            return NOT_OURS
        if row.table is KERNELS and row["gate"] < GATE:
            return OLD_GATE
        if self.before is not None and row["created"] < self.before:
            return "too old"
        if row.table is FACTS:
            return ""  # those of plans go with the plans
        if self.hardware is not None and hardware_of(row["hardware"]) != hardware_of(self.hardware):
            return "of other machines"
        if self.versions is not None and missing_version(row, self.versions):
            return "of versions that are not installed"
        return ""


def prune(database: Database, rule: PruneRule, *, dry_run: bool = False) -> dict[str, int]:
    """Remove rows, in one transaction; how many, by reason. With ``dry_run`` they are only counted.

    Facts that belong to plans of which none is left are removed with them. Raises DatabaseError.
    """
    with nullcontext() if dry_run else database.together():
        removed = _removed(database, rule, dry_run=dry_run)
    if removed and not dry_run:
        try:
            database.run("VACUUM")
        except DatabaseError as error:  # the rows are gone
            log.warning("the file is as large as before: %s", error)
    return removed


def _removed(database: Database, rule: PruneRule, *, dry_run: bool) -> dict[str, int]:
    removed: Counter[str] = Counter()
    judged = [(row, rule.why(row)) for row in rows_of(database)]
    gone = [(row, why) for row, why in judged if why]
    kept = [row for row, why in judged if not why]
    leaving = {race_of(row) for row, why in gone if row.table is NETWORKS and why != NOT_OURS}
    staying = {race_of(row) for row in kept if row.table is NETWORKS}
    gone += [
        (row, "of plans that are removed") for row in kept if row.table is FACTS and race_of(row) in leaving - staying
    ]
    for _, why in gone:
        removed[why] += 1
    if not dry_run:
        for row, _ in gone:
            database.run(row.table.delete, row.key)
    return dict(removed)


def verify(database: Database) -> Sequence[str]:
    """What is wrong in the file, a line each; nothing where all of it is as Collage writes it."""
    problems: list[str] = []
    try:
        found = [str(row[0]) for row in database.run(f"PRAGMA integrity_check({_MOST_PROBLEMS})")]
        problems += [f"SQLite: {each}" for each in found if each != "ok"]
    except DatabaseError as error:
        problems.append(str(error))
    for table in TABLES:
        try:
            for row in rows_of(database, (table,)):
                if problem := row.problem():
                    problems.append(f"{table.name}: {' '.join(str(each) for each in row.key)[:100]}: {problem}")
        except DatabaseError as error:
            problems.append(f"{table.name}: not all of it can be read: {error}")
    return problems
