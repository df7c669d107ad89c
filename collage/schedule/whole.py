"""The interface of a model that one engine runs as its author wrote it: values of any type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from collage.graph.value_type import ValueType


@dataclass(frozen=True)
class ValuePort:
    """An input or output: name and type."""

    name: str
    type: ValueType


@dataclass(frozen=True)
class Whole:
    """Inputs and outputs, in the model's order."""

    inputs: tuple[ValuePort, ...]
    outputs: tuple[ValuePort, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values for the module file."""
        return {
            side: [[port.name, port.type.to_json()] for port in ports]
            for side, ports in (("inputs", self.inputs), ("outputs", self.outputs))
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Whole:
        """The inverse of ``to_json``."""
        return Whole(_ports(data["inputs"]), _ports(data["outputs"]))


def _ports(data: Sequence[Any]) -> tuple[ValuePort, ...]:
    return tuple(ValuePort(name, ValueType.from_json(kind)) for name, kind in data)
