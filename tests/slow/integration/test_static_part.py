"""Models with shapes that depend on data: the static part is placed, an engine runs the rest."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import collage
from collage.backends.layout import LayoutTransforms
from collage.backends.onnx_engine import OnnxEngine
from collage.backends.onnxruntime import OnnxRuntime
from collage.backends.view import View
from collage.errors import CollageError, InputError
from collage.frontend.session import reference_run
from collage.graph.dataflow import TensorType
from collage.kernel.buffers import aligned_array
from collage.kernel.kernel import Session
from collage.kernel.options import BuildOptions
from collage.report.show_html import as_page
from tests.helpers.models import detector

Values = dict[str, np.ndarray]


class _Dawdling(Session):
    def __init__(self, session: Session) -> None:
        self._session = session

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        time.sleep(0.02)
        return self._session.run(inputs)


def _convolves(model: onnx.ModelProto) -> bool:
    return any(node.op_type == "Conv" for node in model.graph.node)


class SlowAtConvolutions(OnnxRuntime):
    """An engine that a placement of the convolutions beats beyond doubt."""

    def session(self, model: bytes, options: BuildOptions) -> Session:
        session = super().session(model, options)
        return _Dawdling(session) if _convolves(onnx.load_from_string(model)) else session


class SlowAtTheRest(OnnxRuntime):
    """An engine that is worse at the rest of the model than at all of it."""

    def session(self, model: bytes, options: BuildOptions) -> Session:
        session = super().session(model, options)
        return session if _convolves(onnx.load_from_string(model)) else _Dawdling(session)


class WrongAtTheRest(OnnxRuntime):
    """An engine whose answers are wrong unless it has the whole model."""

    def session(self, model: bytes, options: BuildOptions) -> Session:
        proto = onnx.load_from_string(model)
        if not _convolves(proto):
            (node,) = (node for node in proto.graph.node if node.op_type == "NonMaxSuppression")
            del node.input[4]  # the least score
        return super().session(proto.SerializeToString(), options)


def compiled(
    database: Path, *engines: OnnxEngine, model: onnx.ModelProto | None = None, **options: Any
) -> collage.CompiledModule:
    registry = collage.Registry()
    for backend in (View(), LayoutTransforms(), *engines):
        registry.register(backend)
    return collage.compile(model or detector(), db=database, registry=registry, progress=False, **options)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("db") / "measurements.sqlite"


@pytest.fixture(scope="module")
def module(database: Path) -> collage.CompiledModule:
    return compiled(database, SlowAtConvolutions())


def values(seed: int) -> Values:
    rng = np.random.default_rng(seed)
    corners = rng.uniform(0, 1, (1, 64, 2)).astype(np.float32)
    return {
        "x": rng.standard_normal((1, 3, 8, 8)).astype(np.float32),
        "prior": np.concatenate([corners, corners + 0.3], 2),
    }


def check(module: collage.CompiledModule, seed: int) -> int:
    """How many boxes were found."""
    outputs = module.run(values(seed))
    expected = reference_run(detector(), values(seed))
    for actual, reference in zip(outputs.values(), expected, strict=True):
        assert actual.shape == reference.shape
        np.testing.assert_allclose(actual, reference, rtol=1e-4, atol=1e-5)
    return int(outputs["y"].shape[1])


def test_the_static_part_is_placed(module: collage.CompiledModule) -> None:
    assert module.program.launches and module.program.suffix is not None
    assert module.program.suffix.region.backend == "onnxruntime"
    assert "onnx.NonMaxSuppression" in module.program.suffix.region.ops
    assert not any("conv" in op.lower() for op in module.program.suffix.region.ops)
    assert module.outputs == {"scores": "float32[1x2x64]", "y": "float32[1x?x1x4]"}
    found = {check(module, seed) for seed in range(5)}
    assert len(found) > 1, "the number of boxes depends on the data"
    assert "mix" in module.report.finalists and len(module.report.finalists) > 1
    assert any("depends on data" in note for note in module.report.notes)
    assert module.report.relative_error < 1e-4


def test_a_second_compile_measures_nothing(module: collage.CompiledModule, database: Path) -> None:
    again = compiled(database, SlowAtConvolutions())
    assert again.report.measurements_made == 0
    assert [r.backend for r in again.program.regions] == [r.backend for r in module.program.regions]


def test_saved_shown_and_run_in_another_process(module: collage.CompiledModule, tmp_path: Path) -> None:
    path = tmp_path / "detector.collage"
    module.save(path)
    for name, array in values(7).items():
        np.save(tmp_path / f"{name}.npy", array)
    code = (
        "import sys, numpy as np, collage\n"
        "folder = sys.argv[1]\n"
        "module = collage.load(folder + '/detector.collage')\n"
        "found = module(np.load(folder + '/x.npy'), np.load(folder + '/prior.npy'))\n"
        "np.savez(folder + '/found.npz', *found)\n"
        "assert 'collage.compiler.compile' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    found = np.load(tmp_path / "found.npz")
    for actual, expected in zip((found["arr_0"], found["arr_1"]), module(values(7)), strict=True):
        np.testing.assert_array_equal(actual, expected)
    summary = module.summary()
    assert len(summary["nodes"]) == len(module.report.nodes)
    assert all(node["backend"] is not None for node in summary["nodes"])
    assert summary["regions"][-1]["backend"] == "onnxruntime"
    json.dumps(summary)
    assert "NonMaxSuppression" in as_page([module.shown])
    assert "onnxruntime" in repr(module)


def test_bound_to_arrays(module: collage.CompiledModule) -> None:
    given = aligned_array(TensorType((1, 3, 8, 8), "float32"))
    call = module.bind({"x": given})
    assert call.inputs["x"] is given
    for seed in (3, 4):
        for name, array in values(seed).items():
            call.inputs[name][:] = array
        call()
        for name, expected in module.run(values(seed)).items():
            np.testing.assert_array_equal(call.outputs[name], expected)


def test_inputs_of_the_rest_alone_are_bound_too(tmp_path: Path) -> None:
    """``prior`` is read by the engine only."""
    model = detector()
    (move,) = (node for node in model.graph.node if node.name == "move")
    move.input[1] = "tenth"
    module = compiled(tmp_path / "db.sqlite", SlowAtConvolutions(), model=model)
    assert [port.name for port in module.program.inputs] == ["x"]
    call = module.bind()
    for name, array in values(5).items():
        call.inputs[name][:] = array
    call()
    expected = module.run(values(5))
    np.testing.assert_array_equal(call.outputs["y"], expected["y"])
    with pytest.raises(InputError, match="prior has shape 3"):
        module.bind({"prior": np.zeros(3, np.float32)})


def test_an_engine_that_is_faster_keeps_the_whole(tmp_path: Path) -> None:
    module = compiled(tmp_path / "db.sqlite", SlowAtTheRest())
    assert not module.program.launches
    assert any(label.startswith("onnxruntime, as written") for label in module.report.finalists)
    check(module, 2)


def test_another_answer_does_not_win(tmp_path: Path) -> None:
    module = compiled(tmp_path / "db.sqlite", WrongAtTheRest())
    assert not module.program.launches
    assert any("its outputs differ from ONNX Runtime's" in note for note in module.report.notes)
    check(module, 3)


def test_strict_still_refuses(database: Path) -> None:
    with pytest.raises(CollageError, match="depends on data"):
        compiled(database, SlowAtConvolutions(), strict=True)
