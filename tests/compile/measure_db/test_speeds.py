"""The machine's speeds: measured once in a worker, rounded, remembered, and never a reason to fail."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from collage.core.machine_lock import LOCK_VARIABLE, machine_lock
from collage.kernel.buffers import aligned_bytes
from collage.kernel.machine_speeds import WRITTEN_DOWN, Blocking, rounded
from collage.kernel.target import Target
from collage.measure.machine.measure_speeds import _best_size, measure_speeds
from collage.measure.machine.quiet import Machine, use_machine
from collage.measure.machine.speeds import (
    MACHINE_SPEEDS,
    machine_speeds,
    read_speeds,
    speeds_key,
    write_speeds,
)
from collage.measure.worker.process import WorkerProcess, Workers
from collage.measure.worker.protocol import MeasuredSpeeds
from collage.measure_db.busy import BUSY_VARIABLE
from collage.measure_db.database import Database
from collage.measure_db.doubt import Doubt
from collage.native import LaunchList, Step, core_problem, team_of
from collage.native.speed import Memory, Sampled, _task, arithmetic, can_measure, transfer

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
    assert 1 < found.gemm_gflops <= found.peak_gflops
    assert found.levels[-1].nbytes == 0 and all(each.nbytes for each in found.levels[:-1])
    assert found.levels[0].read_gbs > found.memory.read_gbs
    assert found == rounded(found)
    other = replace(TARGET, threads=1)
    assert machine_speeds(other, database, NOBODY) == replace(WRITTEN_DOWN, threads=1)
    assert MACHINE_SPEEDS.known(database, [speeds_key(other).key]) == {}


@needs_core
def test_speeds_that_others_disturbed_are_measured_again(
    database: Database, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are marked, and the next compile doubts them on a quiet machine."""
    monkeypatch.setenv(BUSY_VARIABLE, "0.1")
    found = machine_speeds(TARGET, database, workers, 0.05)
    ((busy,),) = database.run("SELECT busy FROM facts WHERE name = ?", (MACHINE_SPEEDS.name,))
    assert busy is not None
    database.run("UPDATE facts SET busy = 0.9")
    database.doubt(Doubt(lambda: False))
    assert machine_speeds(TARGET, database, NOBODY, 0.05) == found
    database.doubt(Doubt(lambda: True))
    with pytest.raises(AssertionError, match="nothing should be measured"):
        machine_speeds(TARGET, database, NOBODY, 0.05)
    machine_speeds(TARGET, database, workers, 0.05)
    assert machine_speeds(TARGET, database, NOBODY, 0.05).measured


@needs_core
def test_speeds_wait_for_their_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOCK_VARIABLE, str(tmp_path / "lock"))
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with machine_lock():
            held.set()
            over.wait(60.0)

    @contextmanager
    def waiting() -> Iterator[None]:
        over.set()
        yield

    def measured() -> MeasuredSpeeds:
        use_machine(Machine(2, waiting=waiting))
        return measure_speeds(2, 0.01)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    assert copy_context().run(measured).speeds.measured
    assert over.is_set()
    holder.join()


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
    good: Any = write_speeds(speeds)
    damaged = [
        {},
        [],
        {**good, "levels": []},
        {**good, "peak_gflops": 0.0},
        {**good, "gemm_gflops": -1.0},
        {**good, "barrier_us": float("inf")},
        {**good, "wake_us": float("nan")},
        {**good, "more": 1},
        {**good, "threads": "2"},
        {**good, "blocking": {**good["blocking"], "gemm_depth": 0}},
        {**good, "blocking": {**good["blocking"], "gemm_depth": 0.5}},
        {**good, "levels": [{**good["levels"][0], "nbytes": -1}]},
    ]
    for each in damaged:
        with pytest.raises((ValueError, TypeError, KeyError)):
            read_speeds(each)
        database.put_fact(MACHINE_SPEEDS.name, key.key, each)
        assert machine_speeds(TARGET, database, NOBODY) == WRITTEN_DOWN


def test_a_third_digit_does_not_count() -> None:
    near = replace(WRITTEN_DOWN, peak_gflops=251.7, barrier_us=0.0963)
    again = replace(WRITTEN_DOWN, peak_gflops=254.9, barrier_us=0.0958)
    assert rounded(near) == rounded(again)
    assert rounded(near).peak_gflops == 250.0
    assert rounded(WRITTEN_DOWN).levels == WRITTEN_DOWN.levels


def test_what_the_key_of_measurements_says_of_blocks() -> None:
    assert str(Blocking()) == ""
    assert str(Blocking(gemm_depth=512)) == "gemm_depth=512"


def sampled(*seconds: float) -> Sampled:
    return Sampled(lambda: None, samples=[*seconds])


def test_another_size_has_to_be_faster_beyond_doubt() -> None:
    usual = sampled(1.0, 1.0, 1.0, 5.0)
    assert _best_size({1: usual, 2: sampled(0.9, 0.9, 0.9, 4.0)}, 1) == 2
    assert _best_size({1: usual, 2: sampled(0.99, 0.99, 0.99, 4.9)}, 1) == 1  # by too little
    assert _best_size({1: usual, 2: sampled(0.5, 0.5, 1.5, 5.5)}, 1) == 1  # too seldom
    assert _best_size({1: usual, 2: sampled(0.9, 0.9, 0.9, 4.0), 3: sampled(0.8, 0.8, 0.8, 4.0)}, 1) == 3


@needs_core
def test_loops_do_what_they_are_timed_for() -> None:
    assert arithmetic(2).work == 2 * arithmetic(1).work > 1e6
    array, result = aligned_bytes(4096), aligned_bytes(64)
    array.fill(1)
    LaunchList(team_of(1), [Step((_task("write", array, result, 2048, 3),))])()
    floats = array.view(np.float32)
    assert (floats[:512] == 2.0).all() and (array[2048:] == 1).all()
    floats[:] = 1.0
    LaunchList(team_of(1), [Step((_task("read", array, result, 4096, 2),))])()
    assert result.view(np.float32)[:4].sum() in (4 * 2048 / lanes for lanes in (4, 8, 16))
    assert transfer("read", 2, 1 << 14).work >= 2 << 20


@needs_core
def test_memory_is_read_one_part_after_another_among_all() -> None:
    memory = Memory(1 << 20, 4)
    first, second = memory.transfer("read", 1), memory.transfer("write", 2)
    assert first.work == second.work == 1 << 18
    for each in (first, second, first):
        each.sample()
    assert memory._next == 3
