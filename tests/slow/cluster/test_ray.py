"""Crews on a real Ray, which is started on this machine for these tests."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import collage
from collage.backends.layout import LayoutTransforms
from collage.backends.registry import Registry
from collage.backends.view import View
from collage.cluster import facts
from collage.cluster.address import ClusterAddress
from collage.cluster.connect import connected
from collage.cluster.ray_crew import RayCrew, on_cluster
from collage.errors import ClusterError
from collage.kernel.target import Target
from collage.measure.measurer import Measurer
from collage.measure.worker.protocol import CandidateRequest
from collage.measure.worker.session import WorkerSession
from collage.measure_db.database import Database
from collage.measure_db.results import Measurement, Rejection
from tests.helpers.backends_for_tests import NumpyBackend
from tests.helpers.cluster.models import Late, MadeUp, Slow, session_of
from tests.helpers.compiler.null import chain, image
from tests.helpers.measure_db import hostile

pytest.importorskip("ray", reason="Ray is not installed: pip install 'collage-compiler[cluster]'")

TWO = ClusterAddress("local", slots=2)
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """A Ray that all tests share."""
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with connected(TWO) as found:
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
        yield found


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database(tmp_path / "db.sqlite") as opened:
        yield opened


@dataclass(frozen=True)
class Bench:
    """A session whose jobs go to two slots; their processes take seconds to start, so that all tests share them."""

    session: WorkerSession
    crew: RayCrew
    slow: Slow
    late: Late

    def measurer(self, database: Database) -> Measurer:
        return Measurer(self.session, database, crew=self.crew)


@pytest.fixture(scope="module")
def bench(ray: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    slow = Slow(tmp_path_factory.mktemp("slow"), 0.3)
    late = Late(tmp_path_factory.mktemp("late"), 6.0)
    namespace: dict[str, Any] = {"NumpyBackend": NumpyBackend, "__name__": "__main__"}
    exec("class Mine(NumpyBackend):\n    name = 'mine'\n", namespace)  # no process can import it
    backends = NumpyBackend(), hostile.Segfault(), hostile.Wrong(), slow, late, namespace["Mine"]()
    session = session_of(*backends, time_s=120.0)
    with on_cluster(TWO, {each.name: each for each in backends}) as crews:
        assert crews.ray is ray  # the connection that exists is used
        crew = crews.crew(session)
        yield Bench(session, crew, slow, late)
        crew.close()
        session.close()


def requests_of(name: str) -> list[CandidateRequest]:
    """The ten regions of the chain of four operators."""
    return [CandidateRequest(tuple(range(a, b)), name) for a in range(4) for b in range(a + 1, 5)]


def test_crashes_cost_only_themselves(bench: Bench, database: Database) -> None:
    requests = [CandidateRequest((n,), name) for n in range(4) for name in ("numpy", "segfault", "wrong", "mine")]
    found = bench.measurer(database).measure(requests)
    assert bench.measurer(database).known(requests) == found
    assert not (Path(bench.session.folder) / "values").exists()  # nothing was measured here
    good = {each.backend for each, outcome in found.items() if isinstance(outcome, Measurement)}
    assert good == {"numpy", "mine"}
    assert {type(found[each]) for each in requests if each.backend not in good} == {Rejection}


def test_what_an_interrupt_finds_is_kept(bench: Bench, database: Database) -> None:
    requests = [CandidateRequest((0,), "numpy"), CandidateRequest((0,), "late")]

    def interrupt() -> None:
        _until(lambda: bool(bench.late.builders()))
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        bench.measurer(database).measure(requests)
    assert [*bench.measurer(database).known(requests)] == requests[:1]


def test_a_worker_that_is_killed_loses_nothing(
    bench: Bench, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    killed: list[int] = []

    def kill() -> None:
        """Kill the first slot that has begun its second job."""
        while not killed:
            builders = [pid for pids in bench.slow.builders().values() for pid in pids]
            twice = [pid for pid in builders if builders.count(pid) == 2]
            for pid in twice[:1]:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
            time.sleep(0.02)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    found = bench.measurer(database).measure(requests_of("slow"))
    thread.join(10.0)
    assert killed
    assert all(isinstance(outcome, Measurement) for outcome in found.values())
    assert bench.measurer(database).known(requests_of("slow")) == found
    begun = bench.slow.builders()
    assert len(begun) == 10
    assert sum(len(pids) > 1 for pids in begun.values()) <= 3  # the killed one's job
    assert [each for each in caplog.messages if "is lost" in each and "node" in each]


def test_the_placement_is_the_same(ray: Any, tmp_path: Path) -> None:
    """The costs are made up: a pair, then one operator of each library."""

    def compiled(cluster: ClusterAddress | None, name: str) -> collage.CompiledModule:
        registry = Registry()
        one = MadeUp("one", {(0,): 20.0, (1,): 20.0, (2,): 3.0, (3,): 40.0})
        other = MadeUp("other", {(0, 1): 8.0, (2, 3): 60.0, (3,): 4.0})
        for backend in (View(), LayoutTransforms(), one, other):
            registry.register(backend)
        return collage.compile(
            chain(), registry=registry, db=tmp_path / name, progress=False, cluster=cluster, threads=1
        )

    def regions(module: collage.CompiledModule) -> list[tuple[str, list[str]]]:
        return [(each["backend"], each["nodes"]) for each in module.summary()["regions"]]

    here, there = compiled(None, "here.sqlite"), compiled(TWO, "there.sqlite")
    assert regions(here) == regions(there)
    assert regions(there) == [("other", ["relu", "tanh"]), ("one", ["exp"]), ("other", ["sigmoid"])]
    assert there.report.measurements_made == here.report.measurements_made
    assert compiled(TWO, "there.sqlite").report.measurements_made == 0
    np.testing.assert_allclose(there(image()), here(image()))


def test_no_node_matches(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "host", lambda: Target("Sparc", "none", 1))  # here, and not on the node
    with (
        pytest.raises(ClusterError, match=r"no node of the cluster at local matches this machine: .*, not Sparc\.$"),
        on_cluster(TWO, {}),
    ):
        pytest.fail("it is connected")


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60.0
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
