"""The suffix of a program: what one engine runs after all launches.

It is the dynamic suffix of a model, from where shapes depend on data, or the whole model where nothing is placed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from collage.core.typed import MalformedError, typed
from collage.graph.value_type import ValueType
from collage.schedule.region import Region


@dataclass(frozen=True)
class ValuePort:
    """An input or output of the model, of any type.

    Inputs that are used as indices have the number of ``rows`` that they index, or one for each column of the last
    axis.
    """

    name: str
    type: ValueType
    rows: int | tuple[int, ...] | None = None


@dataclass(frozen=True)
class Suffix:
    """``region`` says which engine runs the suffix. It comes after all launches.

    ``inputs`` and ``outputs`` are the model's, in its order. The engine reads the values ``reads``, each an input of
    the model or an output of the launches, and makes the outputs ``writes``. The launches make the other outputs.
    """

    region: Region
    inputs: tuple[ValuePort, ...]
    outputs: tuple[ValuePort, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values for the module file."""
        return {
            "region": self.region.to_json(),
            "inputs": [[port.name, port.type.to_json(), port.rows] for port in self.inputs],
            "outputs": [[port.name, port.type.to_json()] for port in self.outputs],
            "reads": list(self.reads),
            "writes": list(self.writes),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Suffix:
        """The inverse of ``to_json``. Raises ValueError, KeyError or TypeError for anything else."""
        return Suffix(
            Region.from_json(data["region"]),
            tuple(
                ValuePort(typed(str, name), ValueType.from_json(kind), read_rows(rows))
                for name, kind, rows in data["inputs"]
            ),
            tuple(ValuePort(typed(str, name), ValueType.from_json(kind)) for name, kind in data["outputs"]),
            tuple(typed(list[str], data["reads"])),
            tuple(typed(list[str], data["writes"])),
        )


def read_rows(data: Any) -> int | tuple[int, ...] | None:
    """The ``rows`` of a port, of a module file. Raises MalformedError."""
    if data is None:
        return None
    rows = tuple(typed(list[int], data)) if isinstance(data, list) else typed(int, data)
    if min(rows if isinstance(rows, tuple) else (rows,), default=0) < 0:
        raise MalformedError("an input indexes fewer than no rows")
    return rows
