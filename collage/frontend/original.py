"""The original model: as it was loaded, and as a region that stands for the whole graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import onnx

from collage.frontend.export.to_onnx import ExportError
from collage.frontend.model import Model
from collage.frontend.model_artifacts import artifact_of
from collage.frontend.read.apart import save_model
from collage.frontend.read.proto_size import elements, itemsize
from collage.frontend.read.scopes import set_all
from collage.frontend.read.shapes import copied, declared_types, model_inputs
from collage.frontend.subgraph import Subgraph
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


def as_region(original: onnx.ModelProto, model: Model) -> onnx.ModelProto:
    """The original with its inputs and outputs in the order of the graph's. It is copied where they have to change.

    Nodes and weights stay as they are. Outputs that are constants, or that come twice, are left out: Collage makes them
    itself. Inputs whose numbers the graph does not read are zeros: only their shapes count. Raises
    ExportError when an input or output of the graph has no counterpart.
    """
    whole = Subgraph(model, tuple(range(len(model.graph.nodes))))
    taken = {value: name for name, value in zip(model.input_names, model.graph.inputs, strict=True)}
    given = {value: name for name, value in zip(model.output_names, model.graph.outputs, strict=True)}
    wanted = (
        [taken.get(value, "") for value in whole.inputs],
        [given.get(value, "") for value in whole.outputs],
    )
    inputs = {info.name: info for info in original.graph.input}
    outputs = {info.name: info for info in original.graph.output}
    missing = [name for name in wanted[0] if name not in inputs] + [n for n in wanted[1] if n not in outputs]
    if missing:
        raise ExportError(f"the original has other inputs or outputs than the graph: {', '.join(missing)}.")
    required = {info.name for info in model_inputs(original)}
    overridable = [info for info in original.graph.input if info.name not in required]
    if ([i.name for i in original.graph.input], [*outputs]) == (
        [*wanted[0], *(info.name for info in overridable)],
        wanted[1],
    ):
        return original
    copy = onnx.ModelProto()
    copy.CopyFrom(original)
    set_all(copy.graph.input, [*(inputs[name] for name in wanted[0]), *overridable])
    copy.graph.initializer.extend(_zeros(inputs[name]) for name in sorted(required - {*wanted[0]}))
    set_all(copy.graph.output, [outputs[name] for name in wanted[1]])
    return copy


def _zeros(info: onnx.ValueInfoProto) -> onnx.TensorProto:
    """Zeros in the place of an input of a fixed shape."""
    tensor = info.type.tensor_type
    found = onnx.TensorProto(
        name=info.name, data_type=tensor.elem_type, dims=[dim.dim_value for dim in tensor.shape.dim]
    )
    found.raw_data = bytes(elements(found) * itemsize(tensor.elem_type))
    return found
