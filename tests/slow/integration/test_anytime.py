"""Compiles that are stopped, with real backends: what they hand over is right, and the next one goes on from there."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnxruntime as ort
import pytest

import collage
from collage.backends.registry import builtin_registry
from collage.core.child_process import ChildProcess
from collage.core.deadline import Deadline
from collage.core.progress import Progress
from collage.errors import MeasurementError
from collage.frontend.subgraph import Subgraph
from collage.kernel.options import BuildOptions
from collage.measure.worker.protocol import CheckKernel, RaceKernels, TryKernel
from collage.measure_db.database import Database
from collage.measure_db.database_file import DatabaseFile
from tests.helpers.backends_for_tests import NumpyBackend
from tests.helpers.beside import TakeAll
from tests.helpers.models import conv_net, elementwise_net

Show = Callable[[Progress], None]
BACKENDS = ["tvm", "onednn", "onnxruntime"]


def check(module: collage.CompiledModule) -> None:
    session = ort.InferenceSession(conv_net().SerializeToString(), providers=["CPUExecutionProvider"])
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((1, 3, 16, 16)).astype(np.float32)
        (expected,) = session.run(None, {"x": x})
        np.testing.assert_allclose(module(x), expected, atol=1e-4 * np.abs(expected).max())


def interrupting(stage: str, times: int = 1) -> Show:
    """Raises KeyboardInterrupt when a stage is shown for that time."""
    left = [times]

    def show(progress: Progress) -> None:
        if progress.stage == stage and progress.best:
            left[0] -= 1
            if not left[0]:
                raise KeyboardInterrupt

    return show


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The database of compiles that are interrupted one after another, each a little later than the one before."""
    return tmp_path_factory.mktemp("db") / "db.sqlite"


@pytest.mark.parametrize(("stage", "times"), [("verify", 1), ("measure", 3), ("run", 1), ("compare", 1), ("check", 1)])
def test_ctrl_c_at_any_stage(stage: str, times: int, database: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        module = collage.compile(conv_net(), backends=BACKENDS, db=database, progress=interrupting(stage, times))
    assert "interrupted; handing over the best module so far" in caplog.text
    assert module.report.ended == "interrupt"
    assert module.report.best_so_far[0].label == "onnxruntime, as written"
    check(module)


@pytest.mark.parametrize("stage", ["measure", "compare"])
def test_measuring_that_fails_loses_nothing(stage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As where the disk is full: no kernel is to blame, and there is a module."""

    def fail(progress: Progress) -> None:
        if progress.stage == stage and progress.best:
            raise MeasurementError("there is no room for the values of the model.")

    module = collage.compile(conv_net(), backends=BACKENDS, db=tmp_path / "db.sqlite", progress=fail)
    assert "no room for the values of the model. Handing over the best module so far." in caplog.text
    assert module.report.ended == "failure"
    check(module)


def test_a_database_that_another_process_holds_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(DatabaseFile.__init__.__kwdefaults__, "busy_s", 0.1)
    held: list[sqlite3.Connection] = []

    def hold(progress: Progress) -> None:
        if progress.stage == "compare" and progress.best and not held:
            held.append(sqlite3.connect(tmp_path / "db.sqlite", isolation_level=None))
            held[0].execute("BEGIN IMMEDIATE")

    module = collage.compile(conv_net(), backends=BACKENDS, db=tmp_path / "db.sqlite", progress=hold)
    held[0].close()
    assert "is locked by another process" in caplog.text
    assert "Handing over the best module so far." in caplog.text
    assert module.report.ended == "failure"
    check(module)


def test_then_a_compile_comes_to_its_end_and_the_next_one_measures_nothing(database: Path) -> None:
    done = collage.compile(conv_net(), backends=BACKENDS, db=database, progress=False)
    again = collage.compile(conv_net(), backends=BACKENDS, db=database, progress=False)
    assert done.report.ended == again.report.ended == "finished"
    assert again.report.measurements_made == 0
    assert [r.nodes for r in again.program.regions] == [r.nodes for r in done.program.regions]
    check(again)


def test_ctrl_c_before_the_first_module(tmp_path: Path) -> None:
    def show(progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collage.compile(conv_net(), backends=BACKENDS, db=tmp_path / "db.sqlite", progress=show)


@pytest.mark.parametrize("level", ["op", "graph"])
def test_a_budget_that_ends_while_candidates_are_measured(
    level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock leaps ahead when a candidate is shown for the twentieth time. The next compile knows all before it."""
    leap = [0.0]
    real = Deadline.__init__

    def begin(self: Deadline) -> None:
        real(self, lambda: time.monotonic() + leap[0])

    seen: list[str] = []

    def show(progress: Progress) -> None:
        if progress.stage == "measure" and 1 < progress.total > progress.done:  # not the end of a group
            seen.append(progress.text)
            if len(seen) == 20:
                leap[0] = 990.0 - 2.0

    def ask(self: ChildProcess, message: object, *args: Any, **options: Any) -> Any:
        if leap[0] and isinstance(message, (TryKernel, RaceKernels, CheckKernel)):
            late.append(message)
        return asked(self, message, *args, **options)

    asked, late = ChildProcess.ask, list[object]()
    monkeypatch.setattr(ChildProcess, "ask", ask)
    monkeypatch.setattr(Deadline, "__init__", begin)
    module = collage.compile(
        conv_net(), backends=BACKENDS, db=tmp_path / "db.sqlite", progress=show, budget_s=990.0, level=level
    )
    assert module.report.ended == "budget"
    assert module.report.budget_s == 990.0
    assert not late  # those that have lost in the same race may still be shown
    check(module)
    with Database(tmp_path / "db.sqlite") as known:
        before = len(set(seen[:19]))  # one that lost a race may be measured again, to the end
        assert before > 10
        assert sum(known.stats().measured.values()) + sum(known.stats().rejected.values()) >= before
        assert "timeout" not in known.stats().rejections


class Sleeper(NumpyBackend):
    """Takes every operator, and a minute for each."""

    name: ClassVar[str] = "sleeper"

    def sources(self, options: BuildOptions) -> Sequence[Any]:
        return (TakeAll(),)

    def codegen(self, subgraph: Subgraph, options: BuildOptions) -> bytes:
        time.sleep(60)
        return super().codegen(subgraph, options)


def test_a_candidate_that_takes_longer_than_the_budget_is_stopped_and_not_rejected(tmp_path: Path) -> None:
    registry = builtin_registry()
    registry.register(Sleeper())
    module = collage.compile(
        elementwise_net(),
        registry=registry,
        backends=["sleeper", "onnxruntime"],
        db=tmp_path / "db.sqlite",
        progress=False,
        budget_s=8.0,
        time_limit_s=300.0,
    )
    assert module.report.ended == "budget"
    assert {r.backend for r in module.program.executed} == {"onnxruntime"}
    assert module.report.compile_s < 60
    with Database(tmp_path / "db.sqlite") as known:
        assert "sleeper" not in known.stats().rejected


def test_a_quick_compile_without_engines_goes_on_until_there_is_a_placement(tmp_path: Path) -> None:
    module = collage.compile(
        elementwise_net(),
        backends=["tvm"],
        db=tmp_path / "db.sqlite",
        progress=False,
        budget_s=0.01,
        quick=True,
    )
    assert {r.backend for r in module.program.launches} == {"tvm"}
