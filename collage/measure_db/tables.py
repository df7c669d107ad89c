"""The tables of a database, whose columns are in the order of the values that are written."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """A table of the schema: its name, its columns, and how many of them, the first ones, are the key."""

    name: str
    columns: tuple[str, ...]
    keys: int

    def select(self, *, backwards: bool = False) -> str:
        """A query of all rows, in the order of their keys, or the other way round."""
        way = " DESC" if backwards else ""
        order = ", ".join(f"{each}{way}" for each in self.columns[: self.keys])
        return f"SELECT {', '.join(self.columns)} FROM {self.name} ORDER BY {order}"

    @property
    def put(self) -> str:
        """A statement that writes a row, in the place of one with the same key."""
        marks = ", ".join("?" * len(self.columns))
        return f"INSERT OR REPLACE INTO {self.name} ({', '.join(self.columns)}) VALUES ({marks})"

    @property
    def delete(self) -> str:
        """A statement that removes the row of a key."""
        return f"DELETE FROM {self.name} WHERE {' AND '.join(f'{c} = ?' for c in self.columns[: self.keys])}"


_KERNEL = "digest backend backend_version settings threads hardware tvm_version"
_OUTCOME = "median_us noise_us min_us repeats max_error tuning finite_only busy clocks"
_REASONS = "rival_us rejection message free_bytes gate created description"
KERNELS = Table("kernels", (*_KERNEL.split(), *_OUTCOME.split(), *_REASONS.split()), keys=7)
_NETWORK = "graph placement threads hardware versions"
_TIMING = "median_us noise_us min_us p90_us repeats busy created description"
NETWORKS = Table("networks", (*_NETWORK.split(), *_TIMING.split()), keys=5)
FACTS = Table("facts", ("name", "key", "value", "busy", "created"), keys=2)
TABLES = (KERNELS, NETWORKS, FACTS)
