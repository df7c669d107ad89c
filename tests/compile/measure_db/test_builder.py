"""Candidates are built once each, in part by a second process, whose end costs nothing but its help."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import ClassVar

import pytest

import collage
from collage.check.spent import AHEAD
from collage.core.machine_lock import LOCK_VARIABLE
from collage.frontend.model import Model
from collage.frontend.subgraph import Subgraph
from collage.kernel.options import BuildOptions
from collage.measure import measurer as measurer_module
from collage.measure.timing.effort import QUICK
from collage.measure.worker.builder import Builder
from collage.measure.worker.plan_protocol import BuiltAhead, PlanKernel
from collage.measure.worker.process import WorkerProcess
from collage.measure.worker.protocol import CandidateRequest, ahead_folder
from collage.measure_db.database import Database
from collage.measure_db.results import Measurement, Rejection, RejectionKind
from tests.backends_for_tests import NumpyBackend
from tests.slow.measure_db.test_measurer import measurer

REQUESTS = [CandidateRequest(tuple(range(a, b)), "noting") for a, b in combinations(range(5), 2)]


class Noting(NumpyBackend):
    """Right, takes a while to build, and writes to a file which process has built what."""

    name: ClassVar[str] = "noting"

    def __init__(self, log: Path, fatal: str = "") -> None:
        """A kernel that begins with the operator ``fatal`` ends the process that builds it."""
        self.log = log
        self.fatal = fatal

    def codegen(self, subgraph: Subgraph, options: BuildOptions) -> bytes:
        with self.log.open("a") as file:
            file.write(f"{os.getpid()} {subgraph.operators[0].op} {len(subgraph.operators)}\n")
        if subgraph.operators[0].op == self.fatal:
            os._exit(3)
        time.sleep(0.1)
        return super().codegen(subgraph, options)


@pytest.fixture(autouse=True)
def few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let few candidates be enough for a second process."""
    monkeypatch.setenv(LOCK_VARIABLE, str(tmp_path / "lock"))
    monkeypatch.setattr(measurer_module, "_AHEAD_S", 0.2)
    monkeypatch.setattr("collage.measure.worker.session.usable_cores", lambda: 2)


@pytest.fixture
def ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let measuring begin when the second process is there, and has built two kernels."""
    offer = Builder.offer

    def waits(builder: Builder, kernels: Iterator[object]) -> None:
        offer(builder, kernels)  # type: ignore[arg-type]
        end = time.monotonic() + 60
        while builder.spent_s == 0 and time.monotonic() < end and builder._threads[0].is_alive():
            time.sleep(0.01)

    monkeypatch.setattr(Builder, "offer", waits)


def built(log: Path) -> list[list[str]]:
    """The process, the first operator and the number of operators of each kernel that was built."""
    return [line.split() for line in log.read_text().splitlines()]


@pytest.mark.usefixtures("ready")
def test_two_processes_build_each_kernel_once(model: Model, database: Database, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with measurer(model, database, Noting(log)) as made:
        found = made.measure(REQUESTS)
        assert all(isinstance(each, Measurement) for each in found.values()) and len(found) == len(REQUESTS)
        assert made.session.spent()[AHEAD] >= 0.1
        assert not [*ahead_folder(made.session.folder).glob("[!p]*")]  # what was measured is not kept twice
        builder = made.session.builder(start=False)
        assert builder is not None
    assert [each.alive for each in builder._processes] == [False]
    lines = built(log)
    assert len({tuple(line[1:]) for line in lines}) == len(lines) == len(REQUESTS)
    assert len({line[0] for line in lines}) == 2


def test_there_are_as_many_builders_as_cores_and_memory_allow(
    model: Model, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def count(cores: int, spare: int | None) -> int:
        monkeypatch.setattr("collage.measure.worker.session.usable_cores", lambda: cores)
        monkeypatch.setattr("collage.measure.worker.session.spare_memory", lambda: spare)
        with measurer(model, database, Noting(tmp_path / "log")) as made:
            return made.session._builders()

    assert [count(cores, None) for cores in (1, 2, 4, 64)] == [0, 1, 3, 6]
    assert [count(64, gib << 30) for gib in (0, 1, 3)] == [0, 0, 2]


def test_several_processes_build_each_kernel_once(
    model: Model, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collage.measure.worker.session.usable_cores", lambda: 4)
    offer, log = Builder.offer, tmp_path / "log"

    def waits(builder: Builder, kernels: Iterator[object]) -> None:
        """Measuring begins when all three have built a kernel."""
        offer(builder, kernels)  # type: ignore[arg-type]
        end = time.monotonic() + 60
        while not log.exists() or len({line[0] for line in built(log)}) < 3:
            assert time.monotonic() < end
            offer(builder, kernels)  # type: ignore[arg-type]
            time.sleep(0.01)

    monkeypatch.setattr(Builder, "offer", waits)
    with measurer(model, database, Noting(log)) as made:
        found = made.measure(REQUESTS)
        assert all(isinstance(each, Measurement) for each in found.values()) and len(found) == len(REQUESTS)
        builder = made.session.builder(start=False)
        assert builder is not None
    assert [each.alive for each in builder._processes] == [False] * 3
    lines = built(log)
    assert len({tuple(line[1:]) for line in lines}) == len(lines) == len(REQUESTS)


@pytest.mark.usefixtures("ready")
def test_a_kernel_that_ends_the_builder_is_rejected_by_the_worker(
    model: Model, database: Database, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with measurer(model, database, Noting(log, fatal="nn.relu")) as made:
        found = made.measure(REQUESTS)
    for request, outcome in found.items():
        if request.nodes[0] == 1:
            assert isinstance(outcome, Rejection) and outcome.kind is RejectionKind.CRASHED
        else:
            assert isinstance(outcome, Measurement)
    assert len(found) == len(REQUESTS)


@pytest.mark.usefixtures("ready")
def test_a_builder_that_is_killed_costs_nothing_but_its_help(
    model: Model, database: Database, tmp_path: Path
) -> None:
    with measurer(model, database, Noting(tmp_path / "log")) as made:
        made.measure(REQUESTS[:4])
        builder = made.session.builder(start=False)
        assert builder is not None
        builder._processes[0].end()
        found = made.measure(REQUESTS)
        assert all(isinstance(each, Measurement) for each in found.values())


def test_no_process_is_started_for_few_candidates_or_a_quick_compile(
    model: Model, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with measurer(model, database, Noting(tmp_path / "log"), effort=QUICK) as made:
        made.measure(REQUESTS[:2])
        assert made.session.builder(start=False) is None
    monkeypatch.setattr(measurer_module, "_AHEAD_S", 0.3)
    with measurer(model, database, Noting(tmp_path / "log")) as made:
        made.measure(REQUESTS[:2])
        assert made.session.builder(start=False) is None


def test_large_weights_ask_for_more_candidates(
    model: Model, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measurer_module, "_AHEAD_S", 0.2)
    with measurer(model, database, Noting(tmp_path / "log")) as made:
        made.session.weights_bytes = 4 << 20
        made.measure(REQUESTS[:2])
        assert made.session.builder(start=False) is None
        made.measure(REQUESTS[2:5])
        assert made.session.builder(start=False) is not None


def test_a_session_may_be_closed_while_the_process_starts(
    model: Model, database: Database, tmp_path: Path
) -> None:
    made = measurer(model, database, Noting(tmp_path / "log"))
    builder = made.session.builder(start=True)
    made.close()
    assert builder is not None and not builder._threads[0].is_alive()
    assert not any(each.alive for each in builder._processes)


def test_what_asks_the_gpu_while_it_is_built_is_left_to_the_worker() -> None:
    registry = collage.default_registry()
    assert registry["tvm_cuda"].ahead_s > registry["tvm"].ahead_s > 0
    assert {registry[name].ahead_s for name in ("cublas", "cudnn", "tensorrt", "torch_cuda")} == {0.0}


def test_a_backend_that_builds_quickly_is_left_to_the_worker() -> None:
    started: list[WorkerProcess] = []

    class Quick:
        """Stands for a process that answers at once."""

        alive = True

        def ask(self, message: object, limit_s: float) -> object:
            return BuiltAhead(0.001)

        def end(self) -> None:
            self.alive = False

        def kill(self) -> None:
            self.alive = False

    def start(tell: object) -> WorkerProcess:
        started.append(Quick())  # type: ignore[arg-type]
        tell(started[0])  # type: ignore[operator]
        return started[0]

    builder = Builder(start, 1.0)
    kernels = [PlanKernel(request, BuildOptions(threads=1)) for request in REQUESTS]
    try:
        for kernel in kernels[:3]:
            builder.offer(iter([kernel]))
            builder.claim(kernel)
        end = time.monotonic() + 10
        left = iter(kernels[3:])
        while builder.spent_s < 0.003 and time.monotonic() < end:
            builder.offer(iter(kernels[:1]))
            time.sleep(0.01)
        builder.offer(left)
        assert next(left, None) is None and builder.spent_s < 0.004
    finally:
        builder.close()
    assert not started[0].alive
