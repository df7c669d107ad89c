"""Models whose weights are in files, from the compile to the module that was saved and loaded."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import collage
from collage.backends.onnxruntime import OnnxRuntime
from collage.frontend.session import reference_run
from collage.kernel.frames import Framed
from collage.kernel.kernel import Session
from collage.kernel.options import BuildOptions
from collage.runtime.parts import Parts
from tests.helpers.apart import all_apart
from tests.helpers.models import conv_net, detector, make_model

__all__ = ["all_apart"]
pytestmark = pytest.mark.usefixtures("all_apart")

Values = dict[str, np.ndarray]


def parts_of(module: collage.CompiledModule) -> Parts:
    parts: Parts = module.parts
    return parts


def drawn(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def assert_right(module: Any, model: onnx.ModelProto, inputs: Values) -> None:
    expected = reference_run(model, inputs)
    for array, wanted in zip(module.run(inputs).values(), expected, strict=True):
        np.testing.assert_allclose(array, wanted, rtol=1e-4, atol=1e-4)


def manifest(path: Path) -> dict[str, Any]:
    with zipfile.ZipFile(path) as archive:
        found: dict[str, Any] = json.loads(archive.read("manifest.json"))
        return found


def test_a_placement_with_a_careful_model(tmp_path: Path) -> None:
    model = conv_net()
    module = collage.compile(model, db=tmp_path / "db.sqlite", progress=False, backends=["onednn"])
    assert_right(module, model, {"x": drawn(0, 1, 3, 16, 16)})
    assert module.program.is_guarded
    assert isinstance(parts_of(module).original, Framed)
    path = tmp_path / "module.collage"
    module.save(path)
    assert manifest(path)["format"] == 8
    loaded = collage.load(path, verify=True)
    for each in (module, loaded):
        x = drawn(1, 1, 3, 16, 16)
        assert_right(each, model, {"x": x})
        x[0, 1, 2, 3] = np.nan
        assert_right(each, model, {"x": x})


class TakesBytes(OnnxRuntime):
    """An engine of somebody's, who knows of models in one piece only."""

    name = "onnxruntime"

    def session(self, model: bytes, options: BuildOptions) -> Session:
        assert len(onnx.load_model_from_string(model).graph.initializer) > 0
        assert all(each.raw_data for each in onnx.load_model_from_string(model).graph.initializer)
        return super().session(model, options)


@pytest.mark.parametrize("engine", [OnnxRuntime, TakesBytes])
def test_an_engine_runs_a_model_whose_shapes_depend_on_data(tmp_path: Path, engine: type[OnnxRuntime]) -> None:
    registry = collage.Registry()
    registry.register(engine())
    model = detector()
    inputs = {
        info.name: drawn(4, *(d.dim_value for d in info.type.tensor_type.shape.dim)) for info in model.graph.input
    }
    module = collage.compile(model, registry=registry, db=tmp_path / "db.sqlite", progress=False, quick=True)
    assert parts_of(module).program.suffix is not None
    assert isinstance(parts_of(module).artifacts[-1], Framed)
    module.save(tmp_path / "module.collage")
    assert manifest(tmp_path / "module.collage")["format"] == 8
    for each in (module, collage.load(tmp_path / "module.collage", registry=registry)):
        assert_right(each, model, inputs)


def test_other_shapes_run_on_the_original(tmp_path: Path) -> None:
    weights = {"w": drawn(5, 8, 8), "b": drawn(6, 8)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Add", ["m", "b"], ["y"])]
    model = make_model(nodes, {"x": ["n", 8]}, {"y": ["n", 8]}, weights)
    module = collage.compile_shapes(
        model, [{"x": (2, 8)}, {"x": (3, 8)}], db=tmp_path / "db.sqlite", progress=False, quick=True
    )
    module.save(tmp_path / "module.collage")
    for each in (module, collage.load(tmp_path / "module.collage")):
        for rows in (2, 3, 5):
            assert_right(each, model, {"x": drawn(rows, rows, 8)})
