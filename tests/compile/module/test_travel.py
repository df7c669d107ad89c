"""Module files on other machines, with other libraries, and of older versions."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import collage
from collage.backends.base import Availability
from collage.backends.openvino import OpenVino
from collage.cli import doctor_checks
from collage.kernel import target
from collage.kernel.target import Cores
from collage.module import fit
from collage.module.file import read_summary
from collage.module.save import save_modules
from tests.helpers.cli.helpers import fails, json_of, succeeds
from tests.helpers.models import conv_net, make_model

OLD = Path(__file__).parents[2] / "data" / "old"
WITHOUT = "tvm tvm_ffi onnx openvino deap networkx cloudpickle ml_dtypes"
RUNS = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in WITHOUT:
            raise ModuleNotFoundError(name)
WITHOUT = sys.argv[4].split()
sys.meta_path.insert(0, Blocked())
import numpy as np, collage
module = collage.load(sys.argv[1])
np.save(sys.argv[3], module(np.load(sys.argv[2])))
print(repr(module))
"""


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return conv_net(16, 32)


@pytest.fixture(scope="module")
def file(model: onnx.ModelProto, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A placement of native kernels and others."""
    folder = tmp_path_factory.mktemp("travel")
    options: dict[str, Any] = {"budget_s": 30.0, "db": folder / "db", "progress": False, "threads": 2}
    module = collage.compile(model, backends=["onednn", "native", "tvm"], **options)
    module.save(folder / "net.collage")
    return folder / "net.collage"


@pytest.fixture(scope="module")
def engine_file(model: onnx.ModelProto, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole model on OpenVINO."""
    folder = tmp_path_factory.mktemp("engine")
    options: dict[str, Any] = {"budget_s": 0.01, "db": folder / "db", "progress": False}
    collage.compile(model, backends=["openvino"], **options).save(folder / "net.collage")
    return folder / "net.collage"


def drawn(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng = np.random.default_rng()
    ports = onnxruntime.InferenceSession(model.SerializeToString()).get_inputs()
    return {port.name: rng.standard_normal(port.shape).astype(np.float32) for port in ports}


def agrees(module: Any, model: onnx.ModelProto) -> None:
    feeds = drawn(model)
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    for found, expected in zip(module.run(feeds).values(), wanted, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def warned(caplog: pytest.LogCaptureFixture) -> str:
    """The text of the only warning."""
    (record,) = [each for each in caplog.records if each.levelno >= logging.WARNING]
    return record.getMessage()


@pytest.mark.parametrize("name", ["mix", "engine", "shapes", "suffix", "tolerance"])
def test_files_of_older_versions(name: str, caplog: pytest.LogCaptureFixture) -> None:
    module = collage.load(OLD / f"{name}.collage")
    original = onnx.load(str(OLD / f"{name}.onnx"))
    first = getattr(module, "modules", [module])[0]
    rng = np.random.default_rng()
    feeds = {p.name: rng.standard_normal(p.type.shape).astype(p.type.dtype) for p in first.program.model_inputs}
    wanted = onnxruntime.InferenceSession(original.SerializeToString()).run(None, feeds)
    for found, expected in zip(module.run(feeds).values(), wanted, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-2 if name == "tolerance" else 1e-5)
    told = len([each for each in caplog.records if each.name == "collage.module.load"])
    assert told == 1 or (told == 0 and name in ("engine", "suffix"))  # these run here as they are


def test_another_cpu_name(
    file: Path, model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    here = target.host()
    monkeypatch.setattr(fit, "host", lambda: target.Target("Another CPU, stepping 9", here.flags, here.threads))
    module = collage.load(file)
    assert "Another CPU, stepping 9" in warned(caplog)
    assert not module.instead  # type: ignore[union-attr]
    agrees(module, model)


def test_another_version_of_an_engine(
    engine_file: Path, model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    installed = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "2026.3.99" if name == "openvino" else installed(name))
    module = collage.load(engine_file)
    assert "2026.3.99 is here" in warned(caplog)
    agrees(module, model)
    assert module.placement[0]["backend"] == "openvino"


def test_a_library_that_is_missing(
    engine_file: Path,
    model: onnx.ModelProto,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    reason = "not installed: pip install 'collage-compiler[openvino]'"
    monkeypatch.setattr(OpenVino, "available", lambda self: Availability(reason=reason))
    module = collage.load(engine_file)
    assert reason in warned(caplog) and "original model" in warned(caplog)
    assert module.placement[0]["backend"] == "onnxruntime"
    agrees(module, model)
    with pytest.raises(collage.ModuleFileError, match=r"pip install 'collage-compiler\[openvino\]'"):
        collage.load(engine_file, strict=True)
    module.save(tmp_path / "again.collage")  # the placement, not what stands in for it
    monkeypatch.undo()
    assert collage.load(tmp_path / "again.collage").placement[0]["backend"] == "openvino"  # type: ignore[union-attr]


@pytest.mark.parametrize("variables", [{}, {"COLLAGE_ISA": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}])
def test_without_what_compiles(file: Path, model: onnx.ModelProto, variables: dict[str, str], tmp_path: Path) -> None:
    feeds = drawn(model)
    (x,) = feeds.values()
    np.save(tmp_path / "x.npy", x)
    done = subprocess.run(
        [sys.executable, "-c", RUNS, file, tmp_path / "x.npy", tmp_path / "y.npy", WITHOUT],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
    assert len(done.stderr.strip().splitlines()) == len(variables) // 2, done.stderr
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), wanted, rtol=1e-4, atol=1e-5)


def test_kernels_that_do_not_load_on_another_cpu(
    file: Path, model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: object, artifact: object, options: object) -> None:
        raise ValueError("for another CPU")

    monkeypatch.setattr("collage.backends.onednn.OneDnn.load", refuse)
    monkeypatch.setattr("collage.backends.native.Native.load", refuse)
    with pytest.raises(collage.ModuleFileError, match="for another CPU"):  # here it is damage
        collage.load(file)
    here = target.host()
    monkeypatch.setattr(fit, "host", lambda: target.Target("Another CPU", "0", here.threads))
    module = collage.load(file)
    assert "for another CPU" in warned(caplog)
    agrees(module, model)


def test_each_weight_is_stored_once(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((300, 400)).astype(np.float32)
    nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])]
    graph = onnx.helper.make_graph(
        nodes,
        "product",
        [onnx.helper.make_tensor_value_info("x", 1, [2, 300])],
        [onnx.helper.make_tensor_value_info("y", 1, [2, 400])],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    options: dict[str, Any] = {"budget_s": 0.01, "db": tmp_path / "db", "progress": False}
    collage.compile(model, backends=["onnxruntime"], **options).save(tmp_path / "net.collage")
    with zipfile.ZipFile(tmp_path / "net.collage") as stored:
        large = [info for info in stored.infolist() if info.file_size >= weight.nbytes]
    assert [info.file_size for info in large] == [weight.nbytes]
    agrees(collage.load(tmp_path / "net.collage"), model)


def test_a_file_of_a_newer_version(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = collage.load(file)
    monkeypatch.setattr("collage.module.save.FORMAT", 99)
    monkeypatch.setattr("collage.module.save.APART_FORMAT", 99)
    save_modules(tmp_path / "new.collage", [(module.stored, module.report)])  # type: ignore[union-attr]
    with pytest.raises(collage.ModuleFileError, match=r"file format 99.*Install that version"):
        collage.load(tmp_path / "new.collage")


def test_doctor_says_what_runs(engine_file: Path, tmp_path: Path) -> None:
    found = json_of("doctor", engine_file, "--json")
    assert found["ok"] and found["checks"][-1]["detail"] == "its placement, on openvino"
    old = succeeds("doctor", OLD / "mix.collage")
    assert "kernels 13" in old and "the original model, on ONNX Runtime" in old
    shutil.copy(OLD / "mix.onnx", tmp_path / "mix.collage")
    fails(1, "doctor", tmp_path / "mix.collage", words=("no module file",))


def test_doctor_says_that_there_are_fewer_cores(engine_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = collage.load(engine_file).report.threads
    monkeypatch.setattr(doctor_checks, "cores", lambda: Cores(threads - 1))
    (found,) = (each for each in doctor_checks.module_checks(engine_file) if each.name == "threads")
    assert found.status == doctor_checks.WARN and f"compiled for {threads} threads" in found.detail


@pytest.mark.parametrize("budget_s", [0.01, 1.0, 2.0])
def test_a_compile_that_ends_during_the_import(budget_s: float, tmp_path: Path) -> None:
    """The report has the nodes of the plan, whatever is known of the graph by the time it is written."""
    rng = np.random.default_rng(0)
    nodes = [
        onnx.helper.make_node("Conv", ["x", "w"], ["a"]),
        onnx.helper.make_node("BatchNormalization", ["a", "s", "b", "m", "v"], ["c"]),
        onnx.helper.make_node("Identity", ["c"], ["d"]),
        onnx.helper.make_node("Relu", ["d"], ["y"]),
    ]
    weights = {"w": rng.standard_normal((4, 3, 3, 3)).astype(np.float32)}
    weights |= {name: rng.uniform(0.5, 1.5, 4).astype(np.float32) for name in "sbmv"}
    model = make_model(nodes, {"x": [1, 3, 9, 9]}, {"y": [1, 4, 7, 7]}, weights)
    module = collage.compile(model, budget_s=budget_s, db=tmp_path / "db", progress=False)
    module.save(tmp_path / "net.collage")
    assert "y" in dict.fromkeys(collage.load(tmp_path / "net.collage").outputs)
    assert read_summary(tmp_path / "net.collage").modules


def test_a_layout_needs_onednn(file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    manifest = {
        "target": {"device": "x", "flags": "y", "threads": 1},
        "versions": {},
        "program": {"tail": None, "regions": [{"backend": "layout"}]},
    }
    registry = collage.builtin_registry()
    assert not fit.fit_of(manifest, registry).problems
    reason = "not installed: pip install 'collage-compiler[onednn]'"
    monkeypatch.setattr(type(registry["layout"]), "available", lambda self: Availability(reason=reason))
    assert fit.fit_of(manifest, registry).problems == (f"it needs oneDNN (here: {reason})",)
