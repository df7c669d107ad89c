"""The column of ``collage db list`` and ``collage db why`` that tells a GPU's clocks, where any were noted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collage.core.nvml import Clocks
    from collage.measure_db.database import Database
    from collage.measure_db.rows import Row


@dataclass(frozen=True)
class ClockColumn:
    """The column's heading, or none, and what it holds in each row; ``best`` are the highest clocks by hardware."""

    best: Mapping[str, Mapping[str, Clocks]]

    @staticmethod
    def of(database: Database, rows: Sequence[Row]) -> ClockColumn:
        """The column for these rows."""
        noted = {str(row["hardware"]) for row in rows if row["clocks"] is not None}
        return ClockColumn({hardware: database.best_clocks(hardware) for hardware in noted})

    @property
    def heading(self) -> tuple[str, ...]:
        """The heading of the column; none where no row has clocks."""
        return ("GPU's MHz",) if self.best else ()

    def cells(self, row: Row) -> tuple[str, ...]:
        """The clocks of the multiprocessors and of the memory, with a mark where they were held back."""
        if not self.best:
            return ()
        from collage.measure_db.database import read_clocks
        from collage.measure_db.doubt import held_back

        found = read_clocks(row["clocks"])
        if found is None:
            return ("",)
        mark = "!" if held_back(found, self.best[str(row["hardware"])]) else ""
        return (f"{found.sm_mhz}/{found.memory_mhz}{mark}{' by power' * found.power_capped}",)
