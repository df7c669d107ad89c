"""Teams of threads and launch lists, as Python sees them."""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from collage.native import LaunchList, Mode, Step, Task, TaskError, Team, core_problem, team_of
from collage.native.library import address_of, core

needs_core = pytest.mark.skipif(bool(core_problem()), reason=core_problem())
ROOT = Path(__file__).resolve().parents[3]
TASKS = """
#include <stdint.h>
typedef struct { void *sync; int32_t tasks; } environment;
typedef struct { const float *from; float *to; intptr_t n; } work;

int count(void *a, void *b, intptr_t n, void *c) { ++*(int64_t *)a; return (int)n; }

int scale(void *from, void *to, intptr_t n, void *factor) {
  for (intptr_t i = 0; i < n; ++i) ((float *)to)[i] = ((const float *)from)[i] * *(const float *)factor;
  return 0;
}

static int negate_share(int task, void *at, void *data) {
  const work *w = data;
  const int tasks = ((environment *)at)->tasks;
  for (intptr_t i = w->n * task / tasks; i < w->n * (task + 1) / tasks; ++i) w->to[i] = -w->from[i];
  return 0;
}

int negate(void *from, void *to, intptr_t n, void *launch) {
  work w = {from, to, n};
  return ((int (*)(int (*)(int, void *, void *), void *, int))launch)(negate_share, &w, 0);
}
"""
CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_void_p)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The C functions of `TASKS`."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "tasks.c").write_text(TASKS)
    library = folder / "tasks.so"
    subprocess.run(
        [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(folder / "tasks.c")],
        check=True,
        timeout=60,
    )
    return ctypes.CDLL(str(library))


@pytest.fixture(params=[1, 2, 3, 5])
def team(request: pytest.FixtureRequest) -> Iterator[Team]:
    if core_problem():
        pytest.skip(core_problem())
    team = Team(request.param)
    yield team
    team.close()


def python_task(function: Callable[[], int]) -> Task:
    """A task that calls Python, which takes the GIL: whoever runs the list does not hold it."""
    callback = CALLBACK(lambda a, b, n, c: function())
    return Task(address_of(callback), keep=(callback,))


def threads_here() -> int:
    return len(os.listdir("/proc/self/task"))


def soon(threads: int) -> bool:
    """Whether there are that many in a moment: the system lists a thread a little longer than others wait for it."""
    deadline = time.monotonic() + 10
    while threads_here() != threads and time.monotonic() < deadline:
        time.sleep(1e-3)
    return threads_here() == threads


# ----------------------------------------------------------------------------------------------------------
# -------- What runs, and in which order


def test_steps_compute_one_after_the_other(team: Team, tasks: ctypes.CDLL) -> None:
    """Scaled in parts at the same time, negated by parallel loops, scaled as a whole; each step waits for the last."""
    n = 1000
    factor, launch = ctypes.c_float(3), address_of(core().collage_parallel_launch)
    arrays = [np.arange(n, dtype=np.float32), *(np.full(n, np.nan, np.float32) for _ in range(3))]
    at = [array.ctypes.data for array in arrays]
    by = ctypes.addressof(factor)
    scale, negate = address_of(tasks.scale), address_of(tasks.negate)
    parts = tuple(Task(scale, at[0] + 4 * i, at[1] + 4 * i, 100, by) for i in range(0, n, 100))
    halves = tuple(Task(negate, at[1] + 4 * i, at[2] + 4 * i, n // 2, launch) for i in (0, n // 2))
    run = LaunchList(team, [Step(parts), Step(halves, Mode.LEAD), Step((Task(scale, at[2], at[3], n, by),)), Step(())])
    for _ in range(200):
        for array in arrays[1:]:
            array.fill(np.nan)
        run()
        np.testing.assert_array_equal(arrays[3], -9 * arrays[0])


def test_split_tasks_have_threads_of_their_own_and_lead_tasks_the_callers(team: Team) -> None:
    ran: list[tuple[str, int]] = []

    def note(name: str) -> Task:
        return python_task(lambda: ran.append((name, threading.get_native_id())) or 0)

    split = Step(tuple(note(f"split {i}") for i in range(2 * team.threads)))
    lead = Step(tuple(note(f"lead {i}") for i in range(3)), Mode.LEAD)
    LaunchList(team, [lead, split, lead])()
    names = [name for name, _ in ran]
    assert names[:3] == names[-3:] == ["lead 0", "lead 1", "lead 2"]
    assert {thread for name, thread in ran if "lead" in name} == {threading.get_native_id()}
    where = dict(ran)
    for i in range(team.threads):
        assert where[f"split {i}"] == where[f"split {i + team.threads}"]
    assert len({where[f"split {i}"] for i in range(team.threads)}) == team.threads


# ----------------------------------------------------------------------------------------------------------
# -------- Errors


@pytest.mark.parametrize("mode", list(Mode))
def test_a_status_ends_the_run_and_names_the_step(team: Team, tasks: ctypes.CDLL, mode: Mode) -> None:
    counts = np.zeros(4, np.int64)
    count = address_of(tasks.count)

    def step(i: int, status: int = 0) -> Step:
        return Step((Task(count, counts.ctypes.data + 8 * i, n=status),), mode)

    good = LaunchList(team, [step(0), step(1), step(2), step(3)])
    bad = LaunchList(team, [step(0), step(1), step(2, -7), step(3)])
    for _ in range(300):
        with pytest.raises(TaskError, match="step 2 of 4 returned status -7"):
            bad()
        good()
    assert counts.tolist() == [600, 600, 600, 300]


# ----------------------------------------------------------------------------------------------------------
# -------- Callers, sleep, the end


def test_callers_take_turns(team: Team, tasks: ctypes.CDLL) -> None:
    counts = np.zeros(2, np.int64)
    both = tuple(Task(address_of(tasks.count), counts.ctypes.data + 8 * i) for i in range(2))

    def work() -> None:
        run = LaunchList(team, [Step(both), Step(both, Mode.LEAD)])
        for _ in range(1000):
            run()

    callers = [threading.Thread(target=work) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert counts.tolist() == [16000, 16000]


@needs_core
def test_closed_teams_leave_no_threads() -> None:
    gc.collect()  # sessions of engines in other tests have threads, too
    before = threads_here()
    for _ in range(50):
        team = Team(4)
        LaunchList(team, [Step((Task(address_of(core().collage_nothing)),))])()
        assert threads_here() == before + 3
        team.close()
        team.close()
        team.park()
        assert soon(before)


@needs_core
def test_a_list_outlives_its_team() -> None:
    team = Team(2)
    run = LaunchList(team, [Step((Task(address_of(core().collage_nothing)),))])
    team.close()
    run()
    assert run.team is team_of(2)


@needs_core
def test_a_forked_child_makes_its_own_team() -> None:
    program = """
import os, threading
from collage.native import LaunchList, Step, Task, team_of
from collage.native.library import address_of, core
team = team_of(3)
run = LaunchList(team, [Step((Task(address_of(core().collage_nothing)),) * 3)] * 5)
run()
child = os.fork()
if not child:
    alone = len(os.listdir("/proc/self/task"))
    team.park()
    run()
    run()
    os._exit(0 if alone == 1 and team_of(3) is run.team is not team and len(os.listdir("/proc/self/task")) == 3 else 1)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
run()
assert team_of(3) is team is run.team
raise SystemExit(status)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


EVENTS = """
import os, signal
from collage.native import Events, LaunchList, Step, team_of
team, events = team_of(1), Events()
record, (wait,) = events.make(1)
first, second = (LaunchList(team, [Step((task,))], events) for task in (record, wait))
first()
second()
first()  # as when another thread is in the middle of a run
def recorded():
    return [each for memory in events._counters for each in memory if each]
assert recorded() == [2, 1]
child = os.fork()
if not child:
    signal.alarm(10)
    for _ in range(3):
        first()
        second()
    assert recorded() == [3, 3]
    os._exit(0)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
child = os.fork()
if not child:
    signal.alarm(10)
    both = first.followed_by([second])
    assert recorded() == []
    both()
    second.team.close()
    first()
    second()
    assert recorded() == [2, 2]
    os._exit(0)
raise SystemExit(status or os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@needs_core
def test_a_fork_begins_with_no_events_and_keeps_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", EVENTS], cwd=ROOT, timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


FREED = """
import os
from collage.kernel.target import cores
from collage.native import LaunchList, Step, Task, team_of
from collage.native.library import address_of, core
every = os.sched_getaffinity(0)
one = {min(every)}
def threads():
    return sorted({int(each) for each in os.listdir("/proc/self/task")} - before)
def places():
    return [os.sched_getaffinity(each) for each in threads()]
before = {int(each) for each in os.listdir("/proc/self/task")}
os.sched_setaffinity(0, one)
run = LaunchList(team_of(2), [Step((Task(address_of(core().collage_nothing)),) * 2)])
run()
assert places() == [one], places()
"""


@needs_core
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
@pytest.mark.parametrize("how", ["asked for", "run"])
def test_a_team_of_a_pinned_thread_leaves_its_core_when_the_caller_does(how: str) -> None:
    """A team that is asked for again is pinned to cores of its own; one that just runs may go where the caller may."""
    program = f"""{FREED}
team_of(2)
assert places() == [one], places()
os.sched_setaffinity(0, every)
if {how == "asked for"}:
    made = threads()
    assert team_of(2) is run.team and threads() == made
    assert cores().shared or len(places()[0]) == 1 and places()[0] <= every - one, places()
    kept = places()
    os.sched_setaffinity(0, one)
    assert team_of(2) is run.team and places() == kept
    os.sched_setaffinity(0, every)
    run()
    assert cores().shared or len(places()[0]) == 1, places()
else:
    run()
    assert places() == [every], places()
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@needs_core
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_cpu_set_that_shrinks_and_grows_again() -> None:
    """The steps stay in order when the process may use one core only, and afterwards."""
    program = """
import os
import numpy as np
from collage.native import LaunchList, Step, Task, team_of
from collage.native.library import address_of, core
def allow(cpus):
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), cpus)
marks = np.zeros(400, np.int64)
note = address_of(core().collage_note_time)
run = LaunchList(team_of(2), [
    Step(tuple(Task(note, a=marks.ctypes.data + 8 * (2 * i + j)) for j in range(2))) for i in range(200)
])
every = sorted(os.sched_getaffinity(0))
for cpus in (every, every[1:2], every[:1], every):
    allow(cpus)
    for _ in range(20):
        marks[:] = 0
        run()
        assert (marks > 0).all()
        pairs = marks.reshape(-1, 2)
        assert (pairs[1:].min(1) >= pairs[:-1].max(1)).all()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
