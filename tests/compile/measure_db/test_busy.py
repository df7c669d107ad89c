"""How busy others kept the machine is kept with a measurement, and decides nothing."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from collage.backends.base import BuildOptions
from collage.core.cpu_time import Cpu, CpuReading
from collage.core.machine_lock import LOCK_VARIABLE, machine_lock
from collage.core.quiet import Machine
from collage.errors import DatabaseError
from collage.measure.measured_model import MeasuredModel
from collage.measure.measurer import Measurer
from collage.measure.settings import CandidateLimits, MeasureSettings
from collage.measure.timing.effort import QUICK
from collage.measure.worker.protocol import CandidateRequest
from collage.measure.worker.session import WorkerSession
from collage.measure_db.database import Database
from collage.measure_db.migrations import MIGRATIONS
from collage.measure_db.results import Measurement
from tests.compile.measure_db.test_exchange import KEY, PLAN, SURE, TIMING
from tests.helpers.backends_for_tests import NumpyBackend, chain_model

BUSY = 0.5


def test_it_is_recorded_and_an_older_database_does_not_know_it(tmp_path: Path) -> None:
    path = tmp_path / "db.sqlite"
    other = replace(PLAN, placement="p2")
    with Database(path, migrations=MIGRATIONS[:3]) as old:
        old.run(
            "INSERT INTO networks VALUES ('g1', 'p1', 2, 'EPYC abc', 'onednn=3.2', 10.0, 0.5, 9.0, 12.0, 8, 1.0, '')"
        )
    with Database(path) as database:
        database.put(KEY, replace(SURE, busy=BUSY))
        database.put_network(other, replace(TIMING, busy=BUSY))
        assert database.get([KEY]) == {KEY: replace(SURE, busy=BUSY)}
        assert database.get_networks([PLAN, other]) == {PLAN: TIMING, other: replace(TIMING, busy=BUSY)}
    with pytest.raises(DatabaseError, match="written by a newer Collage"):
        Database(path, migrations=MIGRATIONS[:3])


class Clocks(Cpu):
    """Two cores, of which another process has one since some moment."""

    def __init__(self, since: float = 1e9) -> None:
        super().__init__(cores=frozenset({0, 1}))
        self.wall, self.since = 100.0, since

    def now(self) -> CpuReading:
        others = max(0.0, self.wall - self.since)
        own = 2 * self.wall - others
        return CpuReading(self.wall, 0.0, 0.0, own, others, 2 if others else 1)


def watched(machine: Machine, clocks: Clocks, seconds: float) -> float | None:
    with machine.quiet() as watch:
        clocks.wall += seconds
    return watch.busy


def test_busy_is_what_others_had() -> None:
    clocks = Clocks()
    machine = Machine(2, cpu=clocks)
    assert watched(machine, clocks, 1.0) == 0.0
    clocks.since = clocks.wall
    assert watched(machine, clocks, 1.0) == pytest.approx(0.5)
    assert watched(machine, clocks, 0.01) == pytest.approx(0.5)  # a short piece counts what was before, too
    clocks.since = 1e9
    for _ in range(30):
        last = watched(machine, clocks, 0.01)
    assert last == 0.0


def test_a_process_that_keeps_a_core_busy_is_noticed() -> None:
    child = subprocess.Popen([sys.executable, "-c", "print(1, flush=True)\nwhile True: pass"], stdout=-1)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        assert Machine().probe(0.5) > 0.1
    finally:
        child.kill()
        child.communicate()


@pytest.mark.parametrize("alone", [True, False])
def test_only_what_needs_the_machine_alone_waits_for_others(
    alone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LOCK_VARIABLE, str(tmp_path / "lock"))
    waited = threading.Event()

    @contextmanager
    def waiting() -> Iterator[None]:
        waited.set()
        yield

    def time_something() -> None:
        with Machine(1, waiting, Clocks()).quiet(alone=alone):
            pass

    other = threading.Thread(target=time_something)
    with machine_lock():
        other.start()
        assert waited.wait(10.0 if alone else 0.2) is alone
    other.join(10.0)
    assert not other.is_alive()


@pytest.fixture
def measurer(tmp_path: Path) -> Iterator[Measurer]:
    settings = MeasureSettings(
        {"numpy": NumpyBackend()},
        {"numpy": "1"},
        BuildOptions(threads=2),
        "test",
        QUICK,
        CandidateLimits(3.0),
    )
    session = WorkerSession(MeasuredModel(chain_model()), settings)
    with Database(tmp_path / "db.sqlite") as database, Measurer(session, database) as made:
        yield made


def test_waiting_for_others_is_no_part_of_a_candidates_time(
    measurer: Measurer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is held for longer than the limit. The first candidate has started the worker."""
    monkeypatch.setenv(LOCK_VARIABLE, str(tmp_path / "lock"))
    first, second = CandidateRequest((0,), "numpy"), CandidateRequest((1,), "numpy")
    assert isinstance(measurer.measure([first])[first], Measurement)
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with machine_lock():
            held.set()
            over.wait(4.0)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    found = measurer.measure([second])[second]
    waited = not thread.is_alive()
    over.set()
    thread.join()
    assert isinstance(found, Measurement) and found.busy is not None and waited
    assert measurer.known([second]) == {second: found}
