"""Children that a fork server starts are like processes of their own, and begin without importing anything."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from collage.core.child_process import ChildEndedError, ChildProcess
from collage.core.forked_process import ForkServers, NoForkError

MODULE = "tests.helpers.core.forked_child"
ROOT = Path(__file__).parents[3]


@pytest.fixture
def servers() -> Iterator[ForkServers]:
    with ForkServers() as found:
        if not found.possible:
            pytest.skip("this system cannot wait for a process that is not its child")
        yield found


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def child(servers: ForkServers, errors: Any = None, **environment: str) -> ChildProcess:
    stderr = os.open(os.devnull, os.O_WRONLY) if errors is None else errors.fileno()
    try:
        forked = servers.fork(MODULE, (MODULE,), stderr, os.environ | environment)
        assert forked is not None
        return ChildProcess(MODULE, stderr, None, forked)
    finally:
        if errors is None:
            os.close(stderr)


def about(one: ChildProcess) -> dict[str, Any]:
    found: dict[str, Any] = one.ask(("tell",), 20.0)
    return found


def runs(process: int) -> bool:
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def ends(process: int) -> bool:
    """Whether it ends within some seconds."""
    return any(not runs(process) or time.sleep(0.05) for _ in range(200))


def test_what_children_need_is_imported_once(servers: ForkServers) -> None:
    first, second = child(servers), child(servers)
    one, other = about(first), about(second)
    assert one["imported_by"] == other["imported_by"] == one["parent"] == other["parent"]
    assert len({one["me"], other["me"], one["parent"], os.getpid()}) == 4
    for each in (first, second):
        each.kill()


def test_a_child_is_like_a_process_of_its_own(
    servers: ForkServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child(servers).kill()  # the server runs by now, with another folder and environment
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOME", raising=False)
    usable, limit = os.sched_getaffinity(0), resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        os.sched_setaffinity(0, {min(usable)})
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limit[1]))
        one = child(servers, TMPDIR=str(tmp_path), COLLAGE_TEST="yes")
    finally:
        os.sched_setaffinity(0, usable)
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    found = about(one)
    one.kill()
    assert found["session"] == found["me"]
    assert found["told_parent"] == found["parent"]
    assert found["parent"] in {each._process.pid for each in servers._servers.values()}
    assert found["largest_file"] == 1 << 20
    assert found["environment"] == os.environ | {"TMPDIR": str(tmp_path), "COLLAGE_TEST": "yes"}
    assert found["path"] == [os.path.abspath(each) for each in sys.path]
    assert (found["folder"], found["temporary"], found["cpus"]) == (
        str(tmp_path),
        str(tmp_path),
        {min(usable)},
    )


@pytest.mark.parametrize(
    ("verb", "code"),
    [
        (("exit", 3), 3),
        (("exit", None), 0),
        (("exit", "words"), 1),
        (("raise", "words"), 1),
        (("abort",), -signal.SIGABRT),
        (("segfault",), -signal.SIGSEGV),
    ],
)
def test_how_a_child_ends_is_known(servers: ForkServers, verb: tuple[Any, ...], code: int) -> None:
    one = child(servers)
    assert one.alive
    with pytest.raises(ChildEndedError) as ended:
        one.ask(verb, 20.0)
    assert ended.value.code == code
    assert not one.alive


def test_what_decides_what_is_loaded_is_a_new_server(servers: ForkServers, monkeypatch: pytest.MonkeyPatch) -> None:
    children = [
        child(servers),
        child(servers, LD_LIBRARY_PATH="/nowhere"),
        child(servers, COLLAGE_TEST="yes"),
    ]
    monkeypatch.syspath_prepend("/nowhere")
    children.append(child(servers))
    first, second, third, fourth = (about(each)["parent"] for each in children)
    assert first == third
    assert len({first, second, fourth}) == 3
    for each in children:
        each.kill()


def test_a_server_that_was_killed_is_replaced(servers: ForkServers) -> None:
    one = child(servers)
    found = about(one)
    os.kill(found["parent"], signal.SIGKILL)
    assert ends(found["parent"])
    assert about(one)["me"] == found["me"]  # the child goes on
    one.kill()
    assert servers.fork(MODULE, (), 2, os.environ) is None  # this once, a process is started in the usual way
    other = child(servers)
    assert about(other)["parent"] != found["parent"]
    other.kill()


def test_what_does_not_survive_a_fork_is_not_forked(
    servers: ForkServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library of any content stands in for the GPU's driver: its name counts."""
    monkeypatch.setattr("collage.core.forked_process._refused", False)
    with open("/proc/self/maps") as maps:
        library = next(line.split()[-1] for line in maps if "/libc.so" in line or "/libc-" in line)
    driver = shutil.copy(library, tmp_path / "libcuda.so.1")
    assert servers.fork(MODULE, (), 2, os.environ | {"LD_PRELOAD": driver}) is None
    assert not servers.possible
    with ForkServers() as others:
        assert others.fork(MODULE, (), 2, os.environ) is None
        assert not others._servers


def test_a_fork_of_the_parent_leaves_its_server_alone(servers: ForkServers) -> None:
    one = child(servers)
    found = about(one)
    (server,) = servers._servers.values()
    fork = os.fork()
    if not fork:
        try:
            server.reap(found["me"])
            server._ask(None, [])
        except NoForkError:
            os._exit(7)
        os._exit(8)
    assert os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]) == 7
    assert about(one) == found
    one.kill()


PARENT = """
import os, time
from collage.core.forked_process import ForkServers
servers = ForkServers()
child = servers.fork("tests.helpers.core.forked_child", (), 2, os.environ)
print(child.pid, next(iter(servers._servers.values()))._process.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.usefixtures("servers")
def test_server_and_children_end_with_the_parent() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    ) as parent:
        assert parent.stdout is not None
        processes = [int(each) for each in parent.stdout.readline().split()]
        assert all(map(runs, processes))
        parent.kill()
    assert all(map(ends, processes))
