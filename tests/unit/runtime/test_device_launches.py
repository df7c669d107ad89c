"""Launches on a GPU, recorded instead of run: what happens before what, in graphs and without."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collage.core.cuda_driver import CudaError
from collage.kernel.device_call import DeviceCall
from collage.runtime import device_launches
from collage.runtime.device_launches import DeviceLaunch, DeviceLaunches
from collage.schedule.dag import Dag
from collage.schedule.gpu_streams import gpu_schedules
from collage.schedule.schedule import TEAM, Ordered, Schedule, check
from tests.helpers.schedule.dags import dags

MAIN = 100


@dataclass
class Recorder:
    """The driver's streams, events and graphs. For each launch it knows all launches that have ended before it."""

    refuses_capture: Exception | None = None
    stream: int = MAIN
    streams: dict[int, frozenset[int]] = field(default_factory=dict)
    """What has ended when the next thing on a stream begins."""
    events: dict[int, frozenset[int]] = field(default_factory=dict)
    graphs: list[list[Callable[[], None]]] = field(default_factory=list)
    before: dict[int, list[frozenset[int]]] = field(default_factory=dict)
    """For each launch, what had ended before it in each of its runs."""
    waited_for: frozenset[int] = frozenset()
    capturing: list[Callable[[], None]] | None = None
    count: int = 0
    turn: threading.RLock = field(default_factory=threading.RLock)

    def do(self, what: Callable[[], None]) -> None:
        """Do it now, or when the graph that is captured is launched."""
        what() if self.capturing is None else self.capturing.append(what)

    def enter(self) -> None:
        pass

    def new_stream(self) -> int:
        self.count += 1
        return self.count

    new_event = new_stream

    def drop_stream(self, _: int) -> None:
        pass

    drop_event = drop_graph = drop_stream

    def ended(self, stream: int) -> frozenset[int]:
        return self.streams.get(stream, frozenset())

    def launch(self, number: int, stream: int) -> None:
        def run() -> None:
            self.before.setdefault(number, []).append(self.ended(stream))
            self.streams[stream] = self.ended(stream) | {number}

        self.do(run)

    def record(self, event: int, stream: int) -> None:
        self.do(lambda: self.events.__setitem__(event, self.ended(stream)))

    def wait(self, stream: int, event: int) -> None:
        self.do(lambda: self.streams.__setitem__(stream, self.ended(stream) | self.events[event]))

    def synchronize(self, stream: int) -> None:
        assert self.capturing is None
        self.waited_for = self.ended(stream)

    def captured(self, stream: int, enqueue: Callable[[], None]) -> int:
        if self.refuses_capture is not None:
            raise self.refuses_capture
        self.capturing = []
        enqueue()
        self.graphs.append(self.capturing)
        self.capturing = None
        return len(self.graphs)

    def launch_graph(self, graph: int, stream: int) -> None:
        begun = self.ended(stream)
        for other in range(1, self.count + 1):
            self.streams[other] = begun  # streams inside of a graph know of nothing outside
        for each in self.graphs[graph - 1]:
            each()

    def begin_run(self) -> None:
        """Forget what has ended in earlier runs."""
        self.streams, self.events = {}, {}


class Recorded(DeviceCall):
    def __init__(self, recorder: Recorder, number: int, *, with_host: bool = False) -> None:
        self.recorder, self.number, self.with_host = recorder, number, with_host

    def enqueue(self, stream: int) -> None:
        self.recorder.launch(self.number, stream)


def launches(recorder: Recorder, ordered: Ordered, with_host: Callable[[int], bool]) -> DeviceLaunches:
    schedule = ordered.schedule
    after = {v: tuple(u for u, w in ordered.events if w == v) for v in schedule.order}
    return DeviceLaunches(
        [
            DeviceLaunch(v, Recorded(recorder, v, with_host=with_host(v)), schedule.streams[v], after[v])
            for v in schedule.order
        ]
    )


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    found = Recorder()
    monkeypatch.setattr(device_launches, "driver", lambda: found)
    return found


@given(dag=dags(10), data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_what_happens_before(dag: Dag, data: st.DataObject, recorder: Recorder) -> None:
    """In each run, with a graph and without, a launch begins when all have ended that the plan of memory counts on."""
    recorder.__init__()  # type: ignore[misc]
    hosted = data.draw(st.lists(st.booleans(), min_size=len(dag), max_size=len(dag)))
    costs = data.draw(st.lists(st.floats(1, 100), min_size=len(dag), max_size=len(dag)))
    moved = data.draw(st.lists(st.integers(0, 1 << 20), min_size=len(dag), max_size=len(dag)))
    found = gpu_schedules(dag, [not each for each in hosted], costs, moved)
    for schedule in (Schedule.sequential(len(dag)), *found.values()):
        check(dag, schedule)
        assert all(schedule.streams[v] == TEAM for v in range(len(dag)) if hosted[v])
        ordered = Ordered(dag, schedule)
        recorder.__init__()  # type: ignore[misc]
        run = launches(recorder, ordered, hosted.__getitem__)
        for number in range(4):
            recorder.begin_run()
            run()
            assert recorder.waited_for == frozenset(range(len(dag)))
            for v in range(len(dag)):
                assert len(recorder.before[v]) == number + 1
                promised = {u for u in range(len(dag)) if ordered.before[v] >> u & 1}
                assert promised <= recorder.before[v][-1]
                assert {*dag.predecessors[v]} <= recorder.before[v][-1]


def test_independent_launches_are_on_different_streams(recorder: Recorder) -> None:
    """Two chains of two from one launch to one: the second ones know nothing of the other chain."""
    dag = Dag.of_edges(6, [(0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 5)])
    schedules = gpu_schedules(dag, [True] * 6, [1.0] * 6, [1] * 6)
    assert set(schedules) == {"nimble", "opara", "nimble, opara's order"}
    for schedule in schedules.values():
        recorder.__init__()  # type: ignore[misc]
        run = launches(recorder, Ordered(dag, schedule), lambda _: False)
        for _ in range(3):
            recorder.begin_run()
            run()
        assert len(recorder.graphs) == 1
        assert {1, 2} == {*recorder.before[3][-1], *recorder.before[4][-1]} - {0}
        assert 2 not in recorder.before[3][-1] and 1 not in recorder.before[4][-1]


def test_copies_stay_outside_of_graphs(recorder: Recorder) -> None:
    """0 and 3 are copies; the two launches between them are one graph from the third run on."""
    dag = Dag.of_edges(4, [(0, 1), (1, 2), (2, 3)])
    run = launches(recorder, Ordered(dag, Schedule.sequential(4)), {0, 3}.__contains__)
    for _ in range(5):
        run()
    assert [len(each) for each in recorder.graphs] == [2]
    assert {len(each) for each in recorder.before.values()} == {5}


def test_an_engine_alone_is_captured_unless_it_has_a_graph_of_its_own(recorder: Recorder) -> None:
    """One kernel alone is no faster in a graph, but many are; what replays its own graph is in no other."""
    for many, capturable, graphs in ((False, True, 0), (True, True, 1), (True, False, 0)):
        recorder.__init__()  # type: ignore[misc]
        call = Recorded(recorder, 0)
        call.many, call.capturable = many, capturable
        launched = DeviceLaunches([DeviceLaunch(0, call)])
        for _ in range(3):
            launched()
        launched.replay()
        assert len(recorder.graphs) == graphs and len(recorder.before[0]) == 4


@pytest.mark.parametrize(
    "error",
    [CudaError("cuStreamEndCapture", 901, "invalidated"), RuntimeError("cuStreamEndCapture: invalidated")],
    ids=["driver", "library"],
)
def test_without_capture_they_are_enqueued_one_by_one(
    recorder: Recorder, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    recorder.refuses_capture = error
    dag = Dag.of_edges(3, [(0, 1), (0, 2)])
    run = launches(recorder, Ordered(dag, Schedule.sequential(3)), lambda _: False)
    for _ in range(4):
        run()
    assert {len(each) for each in recorder.before.values()} == {4}
    assert [each.message for each in caplog.records] == [
        "3 launches are enqueued one by one: cuStreamEndCapture: invalidated"
    ]
