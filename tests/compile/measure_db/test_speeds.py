"""The machine's speeds: measured once in a worker, rounded, remembered, and never a reason to fail."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import pytest

from collage.backends.native_kernels.measure_speeds import _best_size
from collage.kernel.machine_speeds import WRITTEN_DOWN, Blocking, rounded
from collage.kernel.target import Target
from collage.measure.machine.speeds import (
    MACHINE_SPEEDS,
    machine_speeds,
    read_speeds,
    speeds_key,
)
from collage.measure.worker.process import WorkerProcess, Workers
from collage.measure_db.database import Database
from collage.native import core_problem
from collage.native.speed import Sampled, can_measure

TARGET = Target("a machine", "0123", 2)
needs_core = pytest.mark.skipif(bool(core_problem()) or not can_measure(), reason="the loops were not built")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database(tmp_path / "db.sqlite") as found:
        yield found


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    """One that tests share: most of the time is its start."""
    with Workers() as found:
        yield found


class NoWorkers:
    """Fails the test that asks it for a worker."""

    def lend(self, threads: int, *, prepared: bool) -> WorkerProcess:
        raise AssertionError("nothing should be measured")


NOBODY = cast(Workers, NoWorkers())


@needs_core
def test_a_machine_is_measured_once(database: Database, workers: Workers) -> None:
    found = machine_speeds(TARGET, database, workers, 0.05)
    assert machine_speeds(TARGET, database, NOBODY, 0.05) == found
    assert machine_speeds(TARGET, database, NOBODY) == found
    assert found.measured and found.threads == 2
    assert found.gemm_gflops > 1 and found.team_memory_gbs > 0.1
    assert found == rounded(found)
    other = replace(TARGET, threads=1)
    assert machine_speeds(other, database, NOBODY) == replace(WRITTEN_DOWN, threads=1)
    assert MACHINE_SPEEDS.known(database, [speeds_key(other).key]) == {}


class Deadly(Workers):
    """Lends workers that have died."""

    def lend(self, threads: int, *, prepared: bool = False) -> WorkerProcess:
        worker = super().lend(threads, prepared=prepared)
        os.kill(worker._process.pid, signal.SIGKILL)
        return worker


def test_a_worker_that_dies_costs_nothing_but_the_speeds(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    with Deadly() as workers:
        assert machine_speeds(TARGET, database, workers, 0.05) == replace(WRITTEN_DOWN, threads=2)
    assert "the machine's speeds cannot be measured" in caplog.text
    assert speeds_key(TARGET).look_up(database) is None


def test_speeds_are_read_back_and_damaged_ones_are_not(database: Database) -> None:
    speeds = replace(WRITTEN_DOWN, measured=True, blocking=Blocking(winograd_bytes=1000, strassen_bytes=900))
    key = speeds_key(TARGET)
    key.record(database, speeds)
    assert key.look_up(database) == speeds
    good: Any = asdict(speeds)
    damaged = [
        {},
        [],
        {**good, "gemm_gflops": -1.0},
        {**good, "barrier_us": float("inf")},
        {**good, "memory_gbs": float("nan")},
        {**good, "more": 1},
        {**good, "threads": "2"},
        {**good, "blocking": {**good["blocking"], "gemm_depth": 0}},
        {**good, "blocking": {**good["blocking"], "gemm_depth": 0.5}},
    ]
    for each in damaged:
        with pytest.raises((ValueError, TypeError, KeyError)):
            read_speeds(each)
        database.put_fact(MACHINE_SPEEDS.name, key.key, each)
        assert machine_speeds(TARGET, database, NOBODY) == WRITTEN_DOWN


def test_a_third_digit_does_not_count() -> None:
    near = replace(WRITTEN_DOWN, gemm_gflops=251.7, barrier_us=0.0963)
    again = replace(WRITTEN_DOWN, gemm_gflops=254.9, barrier_us=0.0958)
    assert rounded(near) == rounded(again)
    assert rounded(near).gemm_gflops == 250.0
    assert rounded(WRITTEN_DOWN) == WRITTEN_DOWN


def sampled(*seconds: float) -> Sampled:
    return Sampled(lambda: None, samples=[*seconds])


def test_another_size_has_to_be_faster_beyond_doubt() -> None:
    usual = sampled(1.0, 1.0, 1.0, 5.0)
    assert _best_size({1: usual, 2: sampled(0.9, 0.9, 0.9, 4.0)}, 1) == 2
    assert _best_size({1: usual, 2: sampled(0.99, 0.99, 0.99, 4.9)}, 1) == 1  # by too little
    assert _best_size({1: usual, 2: sampled(0.5, 0.5, 1.5, 5.5)}, 1) == 1  # too seldom
    assert _best_size({1: usual, 2: sampled(0.9, 0.9, 0.9, 4.0), 3: sampled(0.8, 0.8, 0.8, 4.0)}, 1) == 3
