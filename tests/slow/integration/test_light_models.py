"""Networks of the model zoo, cut into parts, against the reference outputs that the onnx package has for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest

import collage
from collage.backends.onnx_engine import OnnxEngine
from collage.backends.onnxruntime import OnnxRuntime
from collage.backends.openvino import OpenVino
from collage.patterns.context import MatchContext
from collage.patterns.match import Found
from collage.patterns.regions import WindowRule
from scripts.lib.light_models import FOLDER


@dataclass(frozen=True)
class Parts(WindowRule):
    """Windows, but not the whole graph; few, so that a network is measured in seconds."""

    max_segments: int = 6

    def find(self, context: MatchContext) -> Iterator[Found]:
        return (found for found in super().find(context) if len(found.nodes) < len(context.graph.nodes))


class Coarse(collage.Backend):
    """Parts of a model on an engine. It takes no whole models, on which the engine would be a rival."""

    kind = collage.BackendKind.LIBRARY

    def __init__(self, engine: OnnxEngine) -> None:
        self.name = engine.name  # type: ignore[misc]
        self.engine = engine

    def available(self) -> collage.Availability:
        return self.engine.available()

    def settings(self, options: collage.BuildOptions) -> str:
        return self.engine.settings(options)

    def sources(self, options: collage.BuildOptions) -> Sequence[Parts]:
        return (Parts(),)

    def codegen(self, subgraph: collage.Subgraph, options: collage.BuildOptions) -> bytes:
        return self.engine.codegen(subgraph, options)

    def load(self, artifact: bytes, options: collage.BuildOptions) -> collage.Kernel:
        return self.engine.load(artifact, options)


def reference_run(path: Path) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
    """Inputs, and the outputs beside the network; the input is a ramp from 0 to 1, as in onnx's own test runner."""
    model = onnx.load(path)
    weights = {tensor.name for tensor in model.graph.initializer}
    (info,) = [each for each in model.graph.input if each.name not in weights]
    shape = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
    size = int(np.prod(shape))
    ramp = (np.arange(size).reshape(shape) / size).astype(np.float32)
    tensor = onnx.TensorProto()
    tensor.ParseFromString((FOLDER / f"{path.stem}_output_0.pb").read_bytes())
    return {info.name: ramp}, [onnx.numpy_helper.to_array(tensor)]


# Of those that are small enough, the two that are well-conditioned: most have the same weight everywhere and a
# softmax over numbers of 1e9 and more, where an engine that sums in another order gives anything.
@pytest.mark.parametrize(
    ("name", "backends"),
    [
        ("light_densenet121", [Coarse(OnnxRuntime())]),
        ("light_shufflenet", [Coarse(OnnxRuntime()), Coarse(OpenVino())]),
    ],
)
def test_reference_outputs(name: str, backends: Sequence[collage.Backend], tmp_path: Path) -> None:
    registry = collage.Registry()
    for backend in backends:
        registry.register(backend)
    path = FOLDER / f"{name}.onnx"
    module = collage.compile(path, registry=registry, db=tmp_path / "db.sqlite", progress=False)
    assert len(module.program.launches) > 1
    inputs, expected = reference_run(path)
    for actual, reference in zip(module.run(inputs).values(), expected, strict=True):
        assert np.abs(actual - reference).max() <= 1e-4 * np.abs(reference).max()
