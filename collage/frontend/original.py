"""The original model, as it was loaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import onnx

from collage.frontend.model_artifacts import artifact_of
from collage.frontend.read.apart import save_model
from collage.frontend.read.scopes import set_all
from collage.frontend.read.shapes import copied, declared_types
from collage.kernel.frames import Framed


@dataclass(frozen=True)
class AsLoaded:
    """The model as it was loaded. The shapes of ``model``'s inputs are fixed in place afterwards.

    ``inputs`` are copies of its inputs from before, and ``declared`` of its outputs and inner values. These may be
    wrong: the model that is saved has outputs without shapes.
    """

    model: onnx.ModelProto
    inputs: tuple[onnx.ValueInfoProto, ...]
    declared: tuple[onnx.ValueInfoProto, ...] = ()

    @staticmethod
    def of(model: onnx.ModelProto) -> AsLoaded:
        """Copy the types that the model declares, which may then be changed in place."""
        return AsLoaded(model, copied(model.graph.input), declared_types(model))

    def serialised(self) -> bytes | Framed:
        """The model as an artifact, with its inputs as they were loaded. Raises ModelError if it is too large."""
        with self._with_inputs() as model:
            return artifact_of(model)

    def save(self, path: Path) -> None:
        """Write the model with its inputs as they were loaded (see ``save_model``)."""
        with self._with_inputs() as model:
            save_model(model, path)

    @contextmanager
    def _with_inputs(self) -> Iterator[onnx.ModelProto]:
        """The model, whose inputs are those that were loaded within the block, and as before after it."""
        graph = self.model.graph
        fixed, made = copied(graph.input), copied(graph.output)
        try:
            set_all(graph.input, self.inputs)
            for info in graph.output:
                if info.type.HasField("tensor_type"):
                    info.type.tensor_type.ClearField("shape")
            yield self.model
        finally:
            set_all(graph.input, fixed)
            set_all(graph.output, made)
