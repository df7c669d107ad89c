"""The whole way through: compile, run, save, load; real backends, checked numbers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

import collage
from collage.compiler.finish import TIE
from collage.errors import CollageError, InputError, ModuleFileError, UsageError
from collage.measure.worker.process import WorkerProcess
from tests.helpers.models import conv_net, elementwise_net, make_model


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("db") / "measurements.sqlite"


@pytest.fixture(scope="module")
def module(database: Path) -> collage.CompiledModule:
    return collage.compile(conv_net(), db=database, progress=False)


def reference(model: onnx.ModelProto, *inputs: np.ndarray) -> list[np.ndarray]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {i.name: a for i, a in zip(session.get_inputs(), inputs, strict=True)})


def image(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((1, 3, 16, 16)).astype(np.float32)


def test_outputs_agree_with_onnx_runtime(module: collage.CompiledModule) -> None:
    for seed in range(3):
        (expected,) = reference(conv_net(), image(seed))
        actual = module(image(seed))
        assert np.abs(actual - expected).max() <= 1e-4 * np.abs(expected).max()


def test_outputs_are_the_callers_own(module: collage.CompiledModule) -> None:
    first = module(image(0))
    kept = first.copy()
    module(image(1))
    np.testing.assert_array_equal(first, kept)


def test_every_node_is_covered_once_and_explained(module: collage.CompiledModule) -> None:
    regions = module.program.regions
    covered = [node for region in regions for node in region.nodes]
    assert sorted(covered) == list(range(len(module.report.nodes)))
    for node in module.summary()["nodes"]:
        verdicts = [candidate["verdict"] for candidate in node["candidates"]]
        assert verdicts.count("chosen") == 1
        assert all(verdicts)


def test_a_second_compile_makes_no_measurement_and_starts_no_worker(
    module: collage.CompiledModule, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WorkerProcess, "__init__", lambda *_, **__: pytest.fail("a worker was started"))
    again = collage.compile(conv_net(), db=database, progress=False)
    x = np.random.default_rng(3).standard_normal((1, 3, 16, 16)).astype(np.float32)
    assert np.array_equal(again(x), module(x))
    assert module.report.measurements_made > 0
    assert again.report.measurements_made == 0
    assert [r.nodes for r in again.program.regions] == [r.nodes for r in module.program.regions]
    assert [r.backend for r in again.program.regions] == [r.backend for r in module.program.regions]
    assert again.report.measured_us == module.report.measured_us
    assert again.report.search_s < 1.0


def test_measured_again_on_request(tmp_path: Path) -> None:
    db = tmp_path / "db.sqlite"
    first = collage.compile(conv_net(), db=db, progress=False, quick=True)
    again = collage.compile(conv_net(), db=db, progress=False, quick=True, remeasure=True)
    assert again.report.measurements_made == first.report.measurements_made > 1


def test_never_slower_than_the_engines_it_was_run_against(module: collage.CompiledModule) -> None:
    finalists = module.report.finalists
    best = min(each["median_us"] for each in finalists.values())
    assert module.report.measured_us <= TIE * best


def test_a_saved_module_runs_in_a_fresh_process(module: collage.CompiledModule, tmp_path: Path) -> None:
    path = tmp_path / "net.collage"
    module.save(path)
    np.save(tmp_path / "x.npy", image(5))
    code = (
        "import sys, numpy as np, collage\n"
        "m = collage.load(sys.argv[1])\n"
        "np.save(sys.argv[3], m(np.load(sys.argv[2])))\n"
        "assert 'collage.compiler.compile' not in sys.modules\n"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(path), str(tmp_path / "x.npy"), str(tmp_path / "y.npy")], check=True
    )
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), module(image(5)))
    assert not list(tmp_path.glob(".net*")), "a temporary file stayed behind"


def test_a_module_without_any_backend_is_refused(module: collage.CompiledModule, tmp_path: Path) -> None:
    path = tmp_path / "net.collage"
    module.save(path)
    registry = collage.Registry()
    with pytest.raises(ModuleFileError, match=r"needs .*not registered"):
        collage.load(path, registry=registry)


def test_wrong_inputs_are_named(module: collage.CompiledModule) -> None:
    with pytest.raises(InputError, match=r"unknown input: z\..*x \(float32.*1x3x16x16"):
        module(z=image(0))
    with pytest.raises(InputError, match=r"missing input: x"):
        module()
    with pytest.raises(InputError, match=r"x has shape 1x3x8x8.*1x3x16x16"):
        module(image(0)[:, :, :8, :8])
    with pytest.raises(InputError, match=r"x has dtype float64.*astype\('float32'\)"):
        module(image(0).astype(np.float64))


def test_missing_shapes_come_with_a_flag_to_paste() -> None:
    model = make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": ["n", 3, "h", "w"]}, {"y": ["n", 3, "h", "w"]})
    with pytest.raises(UsageError, match=r"x: n x 3 x h x w.*--shape x:1x3x224x224"):
        collage.compile(model, progress=False, strict=True)
    with pytest.raises(UsageError, match=r"unknown input in the given shapes: q\. Valid: x"):
        collage.compile(model, shapes={"q": (1,)}, progress=False)
    with pytest.raises(UsageError, match="does not fit"):
        collage.compile(model, shapes={"x": (1, 4, 8, 8)}, progress=False)


def test_a_node_the_importer_cannot_convert_is_opaque_and_the_rest_is_not(database: Path) -> None:
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((1, 32, 6)).astype(np.float32) * 0.3,
        "r": rng.standard_normal((1, 32, 8)).astype(np.float32) * 0.3,
    }
    nodes = [
        helper.make_node("Tanh", ["x"], ["t"], "tanh"),
        helper.make_node("LSTM", ["t", "w", "r"], ["h"], "lstm", hidden_size=8),
        helper.make_node("Relu", ["h"], ["y"], "relu"),
    ]
    model = make_model(nodes, {"x": [5, 2, 6]}, {"y": [5, 1, 2, 8]}, weights)
    found = collage.compile(model, db=database, progress=False)
    assert list(found.report.opaque) == ["lstm"]
    assert {n.op for n in found.report.nodes} == {"tanh", "onnx.LSTM", "nn.relu"}
    x = rng.standard_normal((5, 2, 6)).astype(np.float32)
    np.testing.assert_allclose(found(x), reference(model, x)[0], atol=1e-5)


def test_outputs_that_are_inputs_or_constants(database: Path) -> None:
    weights = {"k": np.arange(3, dtype=np.float32)}
    nodes = [
        helper.make_node("Identity", ["x"], ["same"]),
        helper.make_node("Identity", ["k"], ["fixed"]),
        helper.make_node("Relu", ["x"], ["y"]),
        helper.make_node("Identity", ["y"], ["again"]),
    ]
    model = make_model(nodes, {"x": [3]}, {"same": [3], "fixed": [3], "y": [3], "again": [3]}, weights)
    found = collage.compile(model, db=database, progress=False)
    x = np.array([-1, 0, 2], np.float32)
    same, fixed, y, again = found(x)
    np.testing.assert_array_equal(same, x)
    np.testing.assert_array_equal(fixed, weights["k"])
    np.testing.assert_array_equal(y, [0, 0, 2])
    np.testing.assert_array_equal(again, y)


def test_without_a_backend_for_some_operator(database: Path) -> None:
    words = r"no kernel of tvm can run nn\.conv2d \(conv1\), .*\. Allow more backends, such as .*onnxruntime.*\. "
    for quick in (False, True):
        with pytest.raises(CollageError, match=words):
            collage.compile(conv_net(), backends="tvm", db=database, progress=False, quick=quick)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"backends": "tvm, nope"}, r"unknown backend: nope\. Valid: "),
        ({"backends": 3}, "backends must be names, as a list or as 'a,b'; it is 3"),
        ({"backends": []}, "backends names nothing"),
        ({"shapes": [1, 3, 224, 224]}, "shapes must be by the inputs' names, such as {'image': "),
        ({"shapes": {"x": "4x64"}}, "shapes has to give x a sequence of integers, .*; it gives '4x64'"),
        ({"shapes": {"x": 4}}, "shapes has to give x a sequence of integers"),
        ({"shapes": {"x": (4, 6.4)}}, "shapes has to give x a sequence of integers"),
    ],
)
def test_options_of_the_wrong_kind_are_usage_errors(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        collage.compile(elementwise_net(), progress=False, **options)
    if "shapes" in options:
        with pytest.raises(UsageError, match="shapes"):
            collage.compile_shapes(elementwise_net(), **options)
