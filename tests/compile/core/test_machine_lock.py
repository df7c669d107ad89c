"""Who measures has the machine alone, processes take turns, and nobody who ends keeps it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from collage.core.machine_lock import LOCK_VARIABLE, lock_path, machine_lock

_MEASURES = """
import sys, time
from collage.core.machine_lock import machine_lock
print("ready", flush=True)
sys.stdin.readline()
for _ in range(int(sys.argv[2])):
    with machine_lock():
        with open(sys.argv[1], "a") as log:
            log.write(f"begin {sys.argv[3]}\\n")
            log.flush()
            time.sleep(0.005)
            log.write(f"end {sys.argv[3]}\\n")
"""
_HOLDS = """
import sys
from collage.core.machine_lock import machine_lock
with machine_lock():
    print("has it", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(LOCK_VARIABLE, str(tmp_path / "lock"))
    return tmp_path / "lock"


def started(script: str, *arguments: object) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert child.stdout is not None
    child.stdout.readline()
    return child


def can_be_had() -> bool:
    """Whether the machine can be had at once by another thread."""
    waited: list[bool] = []

    @contextmanager
    def waiting() -> Iterator[None]:
        waited.append(True)
        raise TimeoutError
        yield

    def work() -> None:
        try:
            with machine_lock(waiting):
                pass
        except TimeoutError:
            pass

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return not waited


def test_processes_take_turns_and_each_one_goes_on(tmp_path: Path) -> None:
    log, turns = tmp_path / "log", 40
    children = [started(_MEASURES, log, turns, name) for name in "abc"]
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    for child in children:
        child.communicate(timeout=60)
    assert [child.returncode for child in children] == [0, 0, 0]
    lines = [line.split() for line in log.read_text().splitlines()]
    who = [name for what, name in lines if what == "begin"]
    assert lines == [[what, name] for name in who for what in ("begin", "end")]
    assert sorted(who) == sorted("abc" * turns)
    together = "".join(who)[: min("".join(who).rindex(name) for name in "abc")]
    late = max(together.index(name) for name in "abc")  # all three want it from here on
    assert not any(name * 3 in together[late:] for name in "abc")


def test_a_killed_holder_releases_it() -> None:
    child = started(_HOLDS)
    assert not can_be_had()
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert can_be_had()
    child.communicate()


def test_a_thread_that_has_it_may_take_it_again() -> None:
    with machine_lock():
        with machine_lock():
            assert not can_be_had()
        assert not can_be_had()
    assert can_be_had()


def test_a_forked_child_does_not_keep_it() -> None:
    reader, writer = os.pipe()
    with machine_lock():
        child = os.fork()
        if not child:
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
    assert can_be_had()
    os.close(writer)
    os.waitpid(child, 0)
    os.close(reader)


def test_a_file_of_another_user_in_the_default_place_is_left_alone(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could be kept locked for ever."""
    monkeypatch.setattr("collage.core.machine_lock._PLACE", lock.parent)
    monkeypatch.delenv(LOCK_VARIABLE)
    with machine_lock():
        assert not can_be_had()
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    path = lock_path()
    assert path is not None
    path.touch()
    with machine_lock():
        assert can_be_had()


def test_what_an_interrupted_release_has_left_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C may come while the lock is released. The thread that comes back does not keep it from others."""
    with monkeypatch.context() as patch:
        patch.setattr("collage.core.machine_lock._close", _interrupted)
        with pytest.raises(KeyboardInterrupt), machine_lock():
            pass
    assert not can_be_had()
    with machine_lock():
        pass
    assert can_be_had()


def _interrupted(_: int) -> None:
    raise KeyboardInterrupt
