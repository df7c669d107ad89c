"""Candidates are built once each, in part by a second process, whose end costs nothing but its help."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
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
from collage.measure.worker.builder import Builder
from collage.measure.worker.plan_protocol import PlanKernel
from collage.measure.worker.protocol import CandidateRequest, ahead_folder
from collage.measure_db.database import Database
from collage.measure_db.results import Measurement, Rejection, RejectionKind
from tests.helpers.backends_for_tests import NumpyBackend
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
    expect = Builder.expect

    def waits(builder: Builder, kernels: Sequence[PlanKernel], *, first: bool) -> None:
        expect(builder, kernels, first=first)
        end = time.monotonic() + 60
        while builder.spent_s == 0 and time.monotonic() < end and builder._threads[0].is_alive():
            time.sleep(0.01)

    monkeypatch.setattr(Builder, "expect", waits)


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
def test_a_builder_that_is_killed_costs_nothing_but_its_help(model: Model, database: Database, tmp_path: Path) -> None:
    with measurer(model, database, Noting(tmp_path / "log")) as made:
        made.measure(REQUESTS[:4])
        builder = made.session.builder(start=False)
        assert builder is not None
        builder._processes[0].end()
        found = made.measure(REQUESTS)
        assert all(isinstance(each, Measurement) for each in found.values())


def test_a_session_may_be_closed_while_the_process_starts(model: Model, database: Database, tmp_path: Path) -> None:
    made = measurer(model, database, Noting(tmp_path / "log"))
    builder = made.session.builder(start=True)
    made.close()
    assert builder is not None and not builder._threads[0].is_alive()
    assert not any(each.alive for each in builder._processes)


def test_what_asks_the_gpu_while_it_is_built_is_left_to_the_worker() -> None:
    registry = collage.default_registry()
    assert registry["tvm_cuda"].ahead_s > registry["tvm"].ahead_s > 0
    assert {registry[name].ahead_s for name in ("cublas", "cudnn", "tensorrt", "torch_cuda")} == {0.0}
