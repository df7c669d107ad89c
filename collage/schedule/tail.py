"""What one engine runs as its author wrote it: the operators from where shapes depend on data, or the whole model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from collage.graph.value_type import ValueType
from collage.schedule.region import Region
from collage.typed import typed


@dataclass(frozen=True)
class ValuePort:
    """An input or output of the model: name and type, which may be any."""

    name: str
    type: ValueType


@dataclass(frozen=True)
class Tail:
    """``region`` says which engine runs it; it comes after all launches.

    ``inputs`` and ``outputs`` are the model's, in its order. The engine takes the values ``reads``, each an input of
    the model or an output of the launches, and gives the outputs ``writes``; the other outputs come from the launches.
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
            "inputs": [[port.name, port.type.to_json()] for port in self.inputs],
            "outputs": [[port.name, port.type.to_json()] for port in self.outputs],
            "reads": list(self.reads),
            "writes": list(self.writes),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Tail:
        """The inverse of ``to_json``. Raises ValueError, KeyError or TypeError for anything else."""
        return Tail(
            Region.from_json(data["region"]),
            _ports(data["inputs"]),
            _ports(data["outputs"]),
            tuple(typed(list[str], data["reads"])),
            tuple(typed(list[str], data["writes"])),
        )


def _ports(data: Sequence[Any]) -> tuple[ValuePort, ...]:
    return tuple(ValuePort(typed(str, name), ValueType.from_json(kind)) for name, kind in data)
