"""How busy the machine was is kept with a measurement, decides between two, and what was disturbed is made again."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import pytest
from collage.measure.machine.calibration import slowed

from collage.backends.base import BuildOptions
from collage.core.cpu_time import Cpu, CpuReading
from collage.core.machine_lock import LOCK_VARIABLE, machine_lock
from collage.errors import DatabaseError
from collage.measure.machine import quiet
from collage.measure.machine.quiet import Machine
from collage.measure.measured_model import MeasuredModel
from collage.measure.measurer import Measurer
from collage.measure.settings import CandidateLimits, MeasureSettings
from collage.measure.timing.effort import QUICK
from collage.measure.whole_trial import EngineTrial
from collage.measure.worker.protocol import CandidateRequest, SwitchCost
from collage.measure.worker.session import WorkerSession
from collage.measure_db.busy import BUSY_VARIABLE, is_busy, patience
from collage.measure_db.database import Database
from collage.measure_db.doubt import Doubt
from collage.measure_db.keys import Fact, read_text
from collage.measure_db.migrations import MIGRATIONS
from collage.measure_db.results import Measurement, Rejection, RejectionKind
from tests.compile.measure_db.test_exchange import KEY, PLAN, SURE, TIMING, UNSURE, filled, merged
from tests.helpers.backends_for_tests import NumpyBackend, chain_model

BUSY = 0.5


@pytest.fixture(autouse=True)
def usual_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(BUSY_VARIABLE)


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


def test_what_was_disturbed_is_unknown_once_on_a_quiet_machine(tmp_path: Path) -> None:
    late = Rejection(RejectionKind.TIMEOUT, "60 s")
    keys = [replace(KEY, digest=f"d{number}") for number in range(4)]
    rows = dict(zip(keys, (SURE, replace(SURE, busy=0.01), replace(SURE, busy=BUSY), late), strict=True))
    path = filled(tmp_path / "db", {**rows, PLAN: replace(TIMING, busy=BUSY)})
    for quiet_now, unknown in ((True, {keys[2]}), (False, set())):
        asked: list[bool] = []

        def ask(asked: list[bool] = asked, quiet_now: bool = quiet_now) -> bool:
            asked.append(quiet_now)
            return quiet_now

        with Database(path) as database:
            database.doubt(Doubt(ask))
            assert keys[2] not in database.get([keys[0], keys[1], keys[3]]) and not asked
            assert rows.keys() - database.get(keys).keys() == unknown
            assert (database.get_network(PLAN) is None) is quiet_now
            assert asked == [quiet_now]
    with Database(path) as database:
        database.doubt(Doubt(lambda: True))
        database.put(
            keys[2], replace(SURE, busy=BUSY)
        )  # the machine is busy again, which this compile accepts
        assert keys[2] in database.get(keys)


def test_of_two_measurements_the_undisturbed_one_stays_then_the_surer_one_then_the_quieter_one(
    tmp_path: Path,
) -> None:
    pairs = [
        (replace(SURE, busy=BUSY), replace(UNSURE, busy=0.02)),
        (replace(UNSURE, busy=0.01), replace(SURE, busy=0.02)),
        (replace(SURE, busy=0.05), replace(SURE, busy=0.01, min_us=9.5)),
        (replace(SURE, busy=BUSY), SURE),
        (SURE, replace(SURE, busy=0.02)),
    ]
    for number, (worse, better) in enumerate(pairs):
        a, b = filled(tmp_path / f"{number}a", {KEY: worse}), filled(tmp_path / f"{number}b", {KEY: better})
        for files in ((a, b), (b, a)):
            (row,) = merged(tmp_path, *files)
            assert (row["noise_us"], row["busy"]) == (better.noise_us, better.busy)


def test_facts_that_were_timed_are_doubted_too(tmp_path: Path) -> None:
    """A launch's cost and an engine's trial are kept as facts. Others are not about time."""
    trial = EngineTrial({"a": replace(TIMING, busy=0.02), "b": replace(TIMING, busy=BUSY)})
    assert trial.busy() == BUSY and EngineTrial().busy() is None
    cost: Fact[SwitchCost] = Fact("cost", attrgetter("us"), SwitchCost, attrgetter("busy"))
    plain: Fact[str] = Fact("plain", str, read_text)
    with Database(tmp_path / "db.sqlite") as database:
        cost.at("x").record(database, SwitchCost(1.5, BUSY))
        cost.at("y").record(database, SwitchCost(2.5, 0.02))
        plain.at("x").record(database, "text")
        assert cost.known(database, "xy") == {"x": SwitchCost(1.5), "y": SwitchCost(2.5)}
        database.doubt(Doubt(lambda: True))
        assert cost.known(database, "xy") == {"y": SwitchCost(2.5)}
        assert plain.at("x").look_up(database) == "text"
        cost.at("x").record(database, SwitchCost(1.7, BUSY))
        assert cost.at("x").look_up(database) == SwitchCost(1.7)


class Clocks(Cpu):
    """Two cores, of which another process has one since some moment."""

    def __init__(self, since: float = 1e9) -> None:
        super().__init__(cores=frozenset({0, 1}))
        self.wall, self.since = 100.0, since

    def now(self) -> CpuReading:
        others = max(0.0, self.wall - self.since)
        own = 2 * self.wall - others
        return CpuReading(self.wall, 0.0, 0.0, own, others, 2 if others else 1)


@pytest.fixture
def calibrated(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What calibrations give: the last one again and again."""
    times = [100.0]
    monkeypatch.setattr(quiet, "calibration_us", lambda: times.pop(0) if len(times) > 1 else times[0])
    monkeypatch.setattr(quiet, "_CALIBRATED_S", -1.0)
    return times


def watched(machine: Machine, clocks: Clocks, seconds: float) -> tuple[float, float | None]:
    with machine.quiet() as watch:
        clocks.wall += seconds
    return watch.patience, watch.busy


def test_busy_is_what_others_had(calibrated: list[float]) -> None:
    clocks = Clocks()
    machine = Machine(2, cpu=clocks)
    assert watched(machine, clocks, 1.0) == (1.0, 0.0)
    clocks.since = clocks.wall
    assert watched(machine, clocks, 1.0) == (1.0, pytest.approx(0.5))
    longer, busy = watched(machine, clocks, 0.01)  # a short piece counts what was before, too
    assert longer == patience(0.5) == 4.0 and busy == pytest.approx(0.5)
    clocks.since = 1e9
    for _ in range(30):
        last = watched(machine, clocks, 0.01)
    assert last == (1.0, 0.0)


def test_busy_is_how_much_slower_the_machine_is_than_at_its_best(calibrated: list[float]) -> None:
    clocks = Clocks()
    machine = Machine(2, 50.0, cpu=clocks)
    longer, busy = watched(machine, clocks, 1.0)
    assert busy == pytest.approx(slowed(100.0, 50.0)) == pytest.approx(0.4)
    assert longer == patience(0.4)
    assert slowed(57.0, 50.0) == 0.0
    calibrated[:] = [90.0, 50.0]  # slow before and not after: a moment, not the state of the machine
    assert watched(machine, clocks, 1.0)[1] == 0.0


def test_a_process_that_keeps_a_core_busy_is_noticed() -> None:
    child = subprocess.Popen([sys.executable, "-c", "print(1, flush=True)\nwhile True: pass"], stdout=-1)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        assert is_busy(Machine().probe(0.5))
    finally:
        child.kill()
        child.communicate()


def test_a_machine_that_others_measure_on_is_busy(
    calibrated: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for them, and what we build meanwhile stands still."""
    still: list[bool] = []

    @contextmanager
    def standing_still() -> Iterator[None]:
        still.append(True)
        yield
        still.append(False)

    def probe(_: Machine) -> float:
        assert still == [True]
        return 0.25

    monkeypatch.setattr(Machine, "probe", probe)
    monkeypatch.setattr(quiet, "standing_still", standing_still)
    monkeypatch.setenv(LOCK_VARIABLE, str(tmp_path / "lock"))
    assert quiet.busy_now(50.0) == 0.25
    found: list[float] = []
    with machine_lock():
        other = threading.Thread(target=lambda: found.append(quiet.busy_now(50.0)))
        other.start()
        other.join(10)
    assert found == [1.0]
    assert still == [True, False]


@pytest.mark.parametrize(("threads", "alone"), [(2, True), (1, False)])
def test_two_that_need_the_same_cores_do_not_build_at_once(
    threads: int, alone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LOCK_VARIABLE, str(tmp_path / "lock"))
    machine, waited = Machine(threads, cpu=Clocks()), threading.Event()

    @contextmanager
    def waiting() -> Iterator[None]:
        waited.set()
        yield

    def time_something() -> None:
        with machine_lock(waiting):
            pass

    other = threading.Thread(target=time_something)
    with machine.working():
        other.start()
        assert waited.wait(10.0 if alone else 0.2) is alone
        with machine.quiet() as watch:  # what is timed in between has the machine already
            assert watch.patience == 1.0
    other.join(10.0)
    assert not other.is_alive()


@pytest.fixture
def measurer(tmp_path: Path) -> Iterator[Measurer]:
    settings = MeasureSettings(
        {"numpy": NumpyBackend()},
        {"numpy": "1"},
        BuildOptions(threads=1),
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
