"""Kernels that are right on finite numbers only are guarded: calls with other numbers run on ONNX Runtime."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import pytest
from onnx import helper

import collage
from collage.backends.onednn import OneDnn
from collage.errors import CollageError
from collage.frontend.original import AsLoaded
from collage.frontend.session import reference_run
from collage.graph.dataflow import Array
from collage.kernel.kernel import Call, Kernel
from collage.kernel.options import BuildOptions
from collage.measure.crew import Worker
from collage.measure.jobs import Part, RegionJob
from collage.measure_db.results import Measurement
from collage.native import scan
from collage.runtime.executor import Executor
from collage.runtime.suffix import SuffixExecutor
from tests.helpers.backends_for_tests import NumpyBackend
from tests.helpers.cli.helpers import json_of
from tests.helpers.models import conv_net, detector, make_model
from tests.slow.integration.test_static_part import SlowAtConvolutions
from tests.slow.integration.test_static_part import compiled as with_a_suffix
from tests.slow.integration.test_static_part import values as detector_values

ROOT = Path(__file__).resolve().parents[3]
needs_onednn = pytest.mark.skipif(not OneDnn().available(), reason=OneDnn().available().reason)
FORCED = {"drops", "onednn", "native"}
"""Backends whose kernels count as right on finite numbers only in these tests."""
SPECIAL = [np.nan, np.inf, -np.inf, 1e20]


class TakeAll(collage.BasePatternRule):
    @staticmethod
    def op_rule(op: Any) -> bool | str:
        return True


class _Dropping(Kernel):
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        call = self.kernel.bind(inputs, outputs)

        def run() -> None:
            with np.errstate(all="ignore"):
                call()
            for array in outputs:
                array[~np.isfinite(array)] = 0

        return run


class Drops(NumpyBackend):
    """A backend of numpy for single operators. Numbers that are not finite become 0."""

    name: ClassVar[str] = "drops"

    def sources(self, options: BuildOptions) -> Sequence[Any]:
        return (TakeAll(),)

    def load(self, artifact: bytes, options: BuildOptions) -> Kernel:
        return _Dropping(super().load(artifact, options))


@pytest.fixture(autouse=True, scope="module")
def finite_only() -> Iterator[None]:
    """What the gate finds about Drops; and the same said of oneDNN's and our own kernels, so that they are guarded."""
    usual = RegionJob.run

    def run(job: RegionJob, worker: Worker) -> Iterator[Part]:
        for request, outcome in usual(job, worker):
            if isinstance(outcome, Measurement) and request.backend in FORCED:
                outcome = replace(outcome, finite_only=True)
            yield request, outcome

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RegionJob, "run", run)
        yield


@pytest.fixture(scope="module")
def registry() -> collage.Registry:
    found = collage.builtin_registry(with_entry_points=False)
    found.register(Drops())
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("guards")


def network(rows: int | str = 4, scale: float = 1.0) -> onnx.ModelProto:
    """Two dense layers, with weights ``scale`` times larger. The outputs are ``y`` and the first layer's."""
    rng = np.random.default_rng(0)
    weights = {
        "w1": rng.standard_normal((16, 16)).astype(np.float32) * np.float32(scale),
        "b1": rng.standard_normal(16).astype(np.float32),
        "w2": rng.standard_normal((16, 3)).astype(np.float32) * np.float32(scale),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["m"]),
        helper.make_node("Add", ["m", "b1"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("MatMul", ["r", "w2"], ["n"]),
        helper.make_node("Relu", ["n"], ["y"]),
    ]
    return make_model(nodes, {"x": [rows, 16]}, {"y": [rows, 3], "r": [rows, 16]}, weights)


def ordinary(rows: int = 4, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, 16)).astype(np.float32)


def special(value: float, rows: int = 4) -> np.ndarray:
    x = ordinary(rows)
    x[1, 3] = value
    return x


def compiled(
    folder: Path, registry: collage.Registry, model: onnx.ModelProto | None = None, **options: Any
) -> collage.CompiledModule:
    options = {"backends": ["drops"], **options}
    return collage.compile(model or network(), db=folder / "db.sqlite", registry=registry, progress=False, **options)


@pytest.fixture(scope="module")
def module(folder: Path, registry: collage.Registry) -> collage.CompiledModule:
    return compiled(folder, registry)


def fresh(module: collage.CompiledModule, folder: Path, registry: collage.Registry) -> collage.CompiledModule:
    """The module from a file, before its original model is loaded."""
    module.save(folder / "fresh.collage")
    found = collage.load(folder / "fresh.collage", registry=registry)
    assert isinstance(found, collage.CompiledModule)
    return found


def is_loaded(module: collage.CompiledModule) -> bool:
    assert isinstance(module.executor, Executor) and module.executor.careful is not None
    return module.executor.careful.is_loaded


def check(found: Sequence[np.ndarray], model: onnx.ModelProto, x: np.ndarray) -> None:
    """The outputs are exactly ONNX Runtime's."""
    with np.errstate(all="ignore"):
        for actual, expected in zip(found, reference_run(model, {"x": x}), strict=True):
            np.testing.assert_array_equal(actual, expected)


def test_extraordinary_calls_are_answered_by_onnx_runtime(
    module: collage.CompiledModule,
    folder: Path,
    registry: collage.Registry,
    caplog: pytest.LogCaptureFixture,
) -> None:
    module = fresh(module, folder, registry)
    assert all(region.finite_only for region in module.program.launches)
    assert [region.scans for region in module.program.launches] == [(0,), (), (), (), ()]
    expected = reference_run(network(), {"x": ordinary()})
    for _ in range(3):
        np.testing.assert_allclose(module(ordinary())[0], expected[0], rtol=1e-4, atol=1e-5)
    assert not is_loaded(module)
    with caplog.at_level(logging.WARNING, logger="collage"):
        for value in SPECIAL:
            check(module(special(value)), network(), special(value))
            assert is_loaded(module)
            np.testing.assert_allclose(module(ordinary())[0], expected[0], rtol=1e-4, atol=1e-5)
            check([*module.run({"x": special(value)}).values()], network(), special(value))
    (record,) = caplog.records
    assert "answered by ONNX Runtime" in record.getMessage()


def test_the_kernels_alone_would_be_wrong(module: collage.CompiledModule) -> None:
    bare = Executor(module.program, module.executor._kernels, {})  # type: ignore[union-attr]
    with pytest.raises(CollageError, match="the original model is not at hand"):
        bare.run([special(np.nan)])
    assert not np.isnan(bare._outputs[0]).any()
    np.testing.assert_array_equal(bare.run([ordinary()])[0], module(ordinary())[0])


def test_bound_calls(module: collage.CompiledModule, folder: Path, registry: collage.Registry) -> None:
    module = fresh(module, folder, registry)
    for call in (module.bind(), module.bind({"x": aligned(ordinary())}, {"y": aligned(np.zeros((4, 3)))})):
        assert isinstance(call, collage.BoundCall)
        for value in SPECIAL:
            for x in (special(value), ordinary()):
                call.inputs["x"][...] = x
                call()
                np.testing.assert_array_equal(call.inputs["x"], x)
                found = [call.outputs["y"], call.outputs["r"]]
                if x is not None and not np.all(np.abs(x) < 1e12):
                    check(found, network(), x)
                else:
                    np.testing.assert_array_equal(found[0], module(x)[0])


def aligned(array: np.ndarray) -> np.ndarray:
    from collage.kernel.buffers import aligned_copy

    found: np.ndarray = aligned_copy(array.astype(np.float32))
    return found


def test_after_a_fork(module: collage.CompiledModule, folder: Path) -> None:
    """A child loads the model when it needs it. It cannot use what the parent had loaded."""
    module.save(folder / "fork.collage")
    program = """
import os, sys
import numpy as np
import collage
from tests.slow.runtime.test_guards import Drops, special, ordinary
registry = collage.builtin_registry(with_entry_points=False)
registry.register(Drops())
module = collage.load(sys.argv[1], registry=registry)
for before in (False, True):
    if before:
        module(special(np.nan))
    child = os.fork()
    if not child:
        module(ordinary())
        try:
            os._exit(10 if np.isnan(module(special(np.nan))[0]).any() else 1)
        except collage.CollageError as error:
            os._exit(20 if "forked" in str(error) else 2)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    command = [sys.executable, "-W", "ignore", "-c", program, str(folder / "fork.collage")]
    path = os.pathsep.join((str(ROOT), os.environ["PYTHONPATH"]))
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=ROOT, timeout=120, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == ["10", "20"]


def masked_scores() -> onnx.ModelProto:
    """A dense layer, scores of its rows that are negative infinity where a mask says so, and their softmax."""
    weights = {
        "w1": np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32),
        "never": np.array(-np.inf, np.float32),
        "axes": np.array([-1]),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"], name="h"),
        helper.make_node("Relu", ["h"], ["r"], name="r"),
        helper.make_node("Transpose", ["r"], ["t"], name="t"),
        helper.make_node("MatMul", ["r", "t"], ["s"], name="s"),
        helper.make_node("Where", ["mask", "s", "never"], ["m"], name="m"),
        helper.make_node("Relu", ["m"], ["a"], name="a"),
        helper.make_node("Softmax", ["m"], ["p"], name="p"),
        helper.make_node("MatMul", ["p", "r"], ["y"], name="y"),
    ]
    model = make_model(nodes, {"x": [8, 16], "mask": [8, 8]}, {"y": [8, 16], "a": [8, 8]}, weights)
    model.graph.input[1].type.tensor_type.elem_type = onnx.TensorProto.BOOL
    return model


def test_what_a_mask_makes_infinite_is_not_scanned(tmp_path: Path, registry: collage.Registry) -> None:
    """Kernels that were right on the samples read it, and only the model's inputs are scanned."""
    model, mask = masked_scores(), np.random.default_rng(2).random((8, 8)) < 0.7
    mask[:, 0] = True
    module = compiled(tmp_path, registry, model, backends=["drops", "tvm"], inputs={"mask": mask})
    scanned = {value for region in module.program.regions for value in region.scans}
    assert scanned == {port.value for port in module.program.inputs if port.name == "x"}
    module = fresh(module, tmp_path, registry)
    for x in (ordinary(8, seed=3), special(np.nan, 8)):
        expected = reference_run(model, {"x": x, "mask": mask})
        for actual, reference in zip(module(x, mask), expected, strict=True):
            np.testing.assert_allclose(actual, reference, rtol=1e-4, atol=1e-5)
        assert is_loaded(module) == bool(np.isnan(x).any())


@needs_onednn
@pytest.mark.parametrize("threads", [1, 2])
def test_on_the_team(folder: Path, registry: collage.Registry, threads: int) -> None:
    """Values of oneDNN's and our kernels are stored in blocks, and scans are steps of the launch list."""
    model = conv_net(32, 32)
    backends = ["onednn", "native", "mkl"]
    built = compiled(folder, registry, model, backends=backends, threads=threads, quick=threads == 1)
    module = fresh(built, folder, registry)
    assert len(module.executor.calls) == 1  # type: ignore[union-attr]
    assert module.program.is_guarded
    x = np.random.default_rng(3).standard_normal((1, 3, 32, 32)).astype(np.float32)
    (expected,) = reference_run(model, {"x": x})
    np.testing.assert_allclose(module(x), expected, rtol=1e-3, atol=1e-3)
    assert not is_loaded(module)
    call = module.bind()
    for value in SPECIAL:
        bad = x.copy()
        bad[0, 2, 31, 31] = value
        check([module(bad)], model, bad)
        call.inputs["x"][...] = bad
        call()
        check([call.outputs["y"]], model, bad)
        np.testing.assert_allclose(module(x), expected, rtol=1e-3, atol=1e-3)


def test_before_a_suffix(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime answers for the launches, and the engine continues with its outputs."""
    monkeypatch.setattr("tests.slow.runtime.test_guards.FORCED", {"onnxruntime"})
    found = with_a_suffix(folder / "tail.sqlite", SlowAtConvolutions())
    found.save(folder / "tail.collage")
    for module in (found, collage.load(folder / "tail.collage")):
        assert isinstance(module.executor, SuffixExecutor) and module.program.is_guarded
        prefix = module.executor._prefix
        bound = module.bind()
        inputs = detector_values(0)
        for array in bound.inputs:
            bound.inputs[array][...] = inputs[array]
        for value in (0.5, np.nan):
            inputs["x"][0, 1, 2, 3] = bound.inputs["x"][0, 1, 2, 3] = value
            expected = reference_run(detector(), inputs)
            bound()
            for outputs in (module.run(inputs), bound.outputs):
                for actual, reference in zip(outputs.values(), expected, strict=True):
                    np.testing.assert_allclose(actual, reference, rtol=1e-4, atol=1e-5)
            assert prefix.careful is not None and prefix.careful.is_loaded == np.isnan(value)


def test_several_shapes_share_the_model(folder: Path, registry: collage.Registry) -> None:
    model = network("n")
    shaped = collage.compile_shapes(
        model,
        [{"x": (4, 16)}, {"x": (6, 16)}],
        db=folder / "db.sqlite",
        registry=registry,
        progress=False,
        backends=["drops"],
        quick=True,
    )
    path = folder / "shaped.collage"
    shaped.save(path)
    with zipfile.ZipFile(path) as archive:
        (entry,) = (name for name in archive.namelist() if name.startswith("models/"))
        assert archive.read(entry) == AsLoaded.of(model).serialised()
    for found in (
        shaped,
        collage.load(path, registry=registry),
        collage.load(path, registry=registry, share=False),
    ):
        for rows in (4, 6, 5):
            check(found(special(np.nan, rows)), model, special(np.nan, rows))
    assert json_of("show", path, "--json")["original_bytes"] == len(AsLoaded.of(model).serialised())


def test_without_the_native_scan(
    module: collage.CompiledModule, folder: Path, registry: collage.Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "scan_function", lambda: None)
    module = fresh(module, folder, registry)
    module(ordinary())
    assert not is_loaded(module)
    check(module(special(np.nan)), network(), special(np.nan))


@pytest.mark.usefixtures("module")
def test_what_was_measured_is_remembered(folder: Path, registry: collage.Registry) -> None:
    again = compiled(folder, registry)
    assert again.report.measurements_made == 0
    assert all(region.finite_only for region in again.program.launches)
    check(again(special(np.nan)), network(), special(np.nan))
