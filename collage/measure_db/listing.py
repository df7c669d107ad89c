"""What a database knows of regions, for people: newest first, or all candidates of a region beside each other."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collage.kernel.target import hardware_of
from collage.measure_db.database import Database
from collage.measure_db.results import GATE
from collage.measure_db.rows import Row
from collage.measure_db.tables import KERNELS


@dataclass(frozen=True)
class RowFilter:
    """Rows to look at: of a backend, on a machine (Target.measured_on), measured or rejected; "" is any.

    A machine is the same with any CPU quota. Those of earlier editions of the numerics gate are left out unless
    ``old`` ones are wanted.
    """

    backend: str = ""
    hardware: str = ""
    only: str = ""
    old: bool = False

    def takes(self, row: Row) -> bool:
        """Whether the row is looked at."""
        return (
            (self.old or row["gate"] == GATE)
            and self.backend in ("", row["backend"])
            and hardware_of(self.hardware) in ("", hardware_of(row["hardware"]))
            and self.only in ("", "rejected" if row["rejection"] is not None else "measured")
        )


def latest(database: Database, choice: RowFilter, limit: int) -> Sequence[Row]:
    """The newest rows of kernels, at most ``limit``."""
    rows = [row for row in _kernels(database) if choice.takes(row)]
    return sorted(rows, key=lambda row: (-row["created"], row.key))[:limit]


def candidates(database: Database, text: str, choice: RowFilter) -> Mapping[str, Sequence[Row]]:
    """The rows of each region whose operators hold the text, by digest: the fastest first, then what lost a race.

    Rejections are at the end.
    """
    regions: dict[str, list[Row]] = defaultdict(list)
    wanted = _simple(text)
    for row in _kernels(database):
        if choice.takes(row) and (wanted in _simple(row["description"]) or row["digest"].startswith(text)):
            regions[row["digest"]].append(row)
    return {
        digest: sorted(rows, key=lambda row: (row.rejected, row.outrun, row["median_us"] or 0.0, row.key))
        for digest, rows in regions.items()
    }


def _kernels(database: Database) -> Sequence[Row]:
    rows = (Row(KERNELS, values) for values in database.run(KERNELS.select()))
    return [row for row in rows if not row.problem()]


def _simple(text: str) -> str:
    return re.sub(r"\s", "", text).lower()
