"""A form of the model that engines can run whole, with inputs to try it on."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import onnx

from collage.errors import ModelError
from collage.frontend.model_artifacts import artifact_of
from collage.frontend.random_inputs import random_value
from collage.frontend.read.shapes import Shapes, model_inputs
from collage.frontend.read.value_types import value_type
from collage.graph.value_type import ValueType
from collage.kernel.frames import Framed
from collage.kernel.model_artifact import hashed
from collage.schedule.suffix import ValuePort


@dataclass(frozen=True)
class WholeForm:
    """The model as Collage loaded it, or as its author wrote it. ``example_inputs`` are the user's inputs by name.

    Other inputs are made up from ``seed``. They have the ``shapes`` (elements per axis, by name) where the model leaves
    extents open, and all their elements are the one of ``numbers`` where that has one.
    """

    original: onnx.ModelProto
    example_inputs: Mapping[str, Any]
    seed: int
    shapes: Shapes = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def data(self) -> bytes | Framed:
        """The model as an artifact (see ``collage.kernel.model_artifact``)."""
        return artifact_of(self.original)

    @cached_property
    def digest(self) -> str:
        """A hash of the model and of the inputs that it is tried on."""
        digest = hashed(self.data)
        for name in sorted(self.example_inputs):
            # Pickled, since the text of a large array leaves out most of its elements.
            digest.update(pickle.dumps((name, self.example_inputs[name])))
        for made_up in (self.shapes, self.numbers):
            if made_up:
                digest.update(repr(sorted(made_up.items())).encode())
        return digest.hexdigest()

    @cached_property
    def inputs(self) -> Mapping[str, Any]:
        """Values of all inputs in the model's order: the user's, and random ones for the others.

        Raises ModelError for an input of a type that cannot be made up.
        """
        rng = np.random.default_rng(self.seed)
        found = {}
        for port in self.ports[0]:
            name = port.name
            if name in self.example_inputs:
                found[name] = self.example_inputs[name]
                continue
            try:
                found[name] = random_value(port.type, rng)
            except TypeError as error:
                raise ModelError(f"Input {name}: {error}; give one to compile with.") from error
            if name in self.numbers:
                found[name] = np.full_like(found[name], self.numbers[name])
        return found

    @property
    def ports(self) -> tuple[tuple[ValuePort, ...], tuple[ValuePort, ...]]:
        """The model's inputs, with ``shapes`` where there are any, and its outputs."""
        inputs = ports_of(model_inputs(self.original))
        shaped = tuple(replace(port, type=self._shaped(port.name, port.type)) for port in inputs)
        return shaped, ports_of(self.original.graph.output)

    def _shaped(self, name: str, kind: ValueType) -> ValueType:
        return replace(kind, shape=tuple(self.shapes[name])) if name in self.shapes else kind


def ports_of(infos: Sequence[onnx.ValueInfoProto]) -> tuple[ValuePort, ...]:
    """The model's inputs or outputs as ports, with their types. Raises ModelError as ``value_type`` does."""
    return tuple(ValuePort(info.name, value_type(info.type)) for info in infos)
