"""Kernels that are right and fast alone, and crash, hang, raise or err in a network: the compile ends well."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import collage
from collage.backends.base import Backend
from collage.backends.layout import LayoutTransforms
from collage.backends.view import View
from collage.compiler.compile import compile_model
from collage.compiler.task import CompileOptions
from collage.measure.timing.effort import FULL, QUICK, Effort
from collage.measure.worker.process import Workers
from tests.helpers.backends_for_tests import onnx_model
from tests.helpers.beside import Beside, Engine, Late, Slow
from tests.helpers.finished import rows


def chain() -> onnx.ModelProto:
    """x → relu → tanh → exp → mul by a constant → y."""
    kind = ((4, 64), TensorProto.FLOAT)
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Tanh", ["a"], ["b"]),
        helper.make_node("Exp", ["b"], ["c"]),
        helper.make_node("Mul", ["c", "w"], ["y"]),
    ]
    return onnx_model(nodes, {"x": kind}, {"y": kind}, {"w": np.linspace(1, 2, 64, dtype=np.float32)})


@pytest.fixture(scope="module", autouse=True)
def workers() -> Iterator[None]:
    """One for all compiles, as long as no kernel ends it: most of a start is importing TVM."""
    with Workers() as kept:
        _workers.append(kept)
        yield


_workers: list[Workers] = []


def compiled(database: Path, *backends: Backend, **options: Any) -> collage.CompiledModule:
    registry = collage.Registry()
    for backend in (View(), LayoutTransforms(), *backends):
        registry.register(backend)
    model = chain()
    asked = CompileOptions(db=database, threads=1, time_limit_s=2.0, **options)
    module = compile_model(model, asked, registry, lambda _: None, _workers[-1])
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for seed in range(6):
        x = np.random.default_rng(seed).standard_normal((4, 64)).astype(np.float32)
        (expected,) = session.run(None, {"x": x})
        np.testing.assert_allclose(module(x), expected, rtol=1e-5, atol=1e-6)
    return module


def used(module: collage.CompiledModule) -> set[str]:
    """The backends that run something."""
    return {region.backend for region in module.program.executed}


def reasons(module: collage.CompiledModule, backend: str) -> list[str]:
    """Why candidates of the backend were rejected after they had been measured."""
    return [c.reason for c in module.report.candidates if c.backend == backend and "in the network" in c.reason]


WAYS = [
    ("errs", "third call", "inaccurate: in the network, after beside relu: in call 3, output 0 differs by"),
    ("segfaults", "at once", "crashed: in the network, after beside relu: SIGSEGV"),
    ("hangs", "at once", "timeout: in the network, after beside relu: took more than"),
    ("raises", "seventh call", "failed: in the network, after beside relu: run: RuntimeError: worn out"),
]


@pytest.mark.parametrize(("way", "moment", "words"), WAYS)
def test_a_kernel_that_fails_in_the_network_is_rejected_and_remembered(
    way: str, moment: str, words: str, tmp_path: Path
) -> None:
    backends = Beside(way, moment), Slow()
    module = compiled(tmp_path / "db.sqlite", *backends)
    (reason,) = reasons(module, "beside")
    assert reason.startswith(words)
    assert any(words in note for note in module.report.notes)
    again = compiled(tmp_path / "db.sqlite", *backends)
    assert again.report.measurements_made == 0
    assert reasons(again, "beside") == [reason]


def test_a_kernel_that_crashes_where_others_are_loaded_is_rejected(tmp_path: Path) -> None:
    """It may be found in a race, where the cost of a switch is measured, or in the network."""
    module = compiled(tmp_path / "db.sqlite", Beside("segfaults", "among others"), Slow())
    (reason,) = {c.reason for c in module.report.candidates if c.backend == "beside" and c.reason}
    assert reason.startswith("crashed: ") and "SIGSEGV" in reason


def test_a_network_that_fails_when_nobody_looks_is_dropped(tmp_path: Path) -> None:
    backends = Beside("segfaults", "unnoted"), Slow()
    module = compiled(tmp_path / "db.sqlite", *backends)
    assert used(module) == {"onnxruntime"}
    assert any("fails as a whole: crashed: in the network: SIGSEGV" in note for note in module.report.notes)
    # The next compile knows of the failure from the start, and may measure to the end what had lost a race.
    compiled(tmp_path / "db.sqlite", *backends)
    again = compiled(tmp_path / "db.sqlite", *backends)
    assert again.report.measurements_made == 0
    assert used(again) == {"onnxruntime"}


@pytest.mark.parametrize("effort", [FULL, QUICK])
def test_a_kernel_that_the_worker_alone_can_load_is_left_out(effort: Effort, tmp_path: Path) -> None:
    module = compiled(tmp_path / "db.sqlite", Beside("loads elsewhere"), Slow(), effort=effort)
    found = {c.reason for c in module.report.candidates if c.backend == "beside" and c.reason}
    (reason,) = found
    assert reason.startswith("failed: in the process that compiles: the beside kernel tanh cannot be loaded: not here")


def test_without_an_engine_another_mix_takes_its_place(tmp_path: Path) -> None:
    module = compiled(tmp_path / "db.sqlite", Beside("segfaults", "unnoted"), Late())
    assert {op: region.backend for region in module.program.launches for op in region.ops}["tanh"] == "late"


def test_a_network_that_was_right_once_and_has_failed_since_is_not_handed_over(tmp_path: Path) -> None:
    module = compiled(tmp_path / "db.sqlite", Beside(), Late(), effort=QUICK)
    assert used(module) == {"beside"}
    rows(tmp_path / "db.sqlite", "DELETE FROM networks")
    backends = Beside("raises", "unnoted"), Late()
    module = compiled(tmp_path / "db.sqlite", *backends)
    assert used(module) == {"late"}
    # A quick compile recalls what it has handed over, and looks for another placement.
    assert used(compiled(tmp_path / "db.sqlite", *backends, effort=QUICK)) == {"late"}


def test_the_graph_level_goes_on_without_a_region_that_fails(tmp_path: Path) -> None:
    backends = Engine("segfaults", "at once"), Beside(), Slow()
    module = compiled(tmp_path / "db.sqlite", *backends, graph_level_s=4.0)
    first = module.report.graph_level
    assert first is not None
    for _ in range(5):  # what a search learns may show the next compile one region more
        again = compiled(tmp_path / "db.sqlite", *backends, graph_level_s=4.0)
        if not again.report.measurements_made:
            break
    assert again.report.measurements_made == 0
    assert again.report.graph_level is not None
    assert again.report.graph_level.trials > 0


def test_what_was_measured_is_what_ships(tmp_path: Path) -> None:
    """Codegen runs in the worker; for kernels known from the database it runs when they ship."""
    log = tmp_path / "codegen"
    backends = Beside(log=log), Slow(log)
    module = compiled(tmp_path / "db.sqlite", *backends)
    lines = [line.split(" ", 1) for line in log.read_text().splitlines()]
    assert str(os.getpid()) not in {pid for pid, _ in lines}
    # Twice is for a kernel that lost a race, and was measured to the end later.
    assert set(Counter(what for _, what in lines).values()) <= {1, 2}
    log.unlink()
    again = compiled(tmp_path / "db.sqlite", *backends)
    assert [r.nodes for r in again.program.launches] == [r.nodes for r in module.program.launches]
    assert len(log.read_text().splitlines()) == len(again.program.launches) + log.read_text().count("original")


def test_a_kernel_that_cannot_be_made_again_is_left_out(tmp_path: Path) -> None:
    compiled(tmp_path / "db.sqlite", Beside(), Slow())
    module = compiled(tmp_path / "db.sqlite", Beside("refuses"), Slow())
    assert "unsupported: not today" in {c.reason for c in module.report.candidates}
    assert used(module) == {"onnxruntime"}
