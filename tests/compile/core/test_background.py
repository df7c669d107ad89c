"""Processes in the background stand still while something is timed, go on afterwards, and end with their parents."""

from __future__ import annotations

import mmap
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from collage.core import background
from collage.core.background import BackgroundError, standing_still
from collage.core.machine_lock import LOCK_VARIABLE

_COUNTS = """
import mmap, os, struct, sys
from collage.core import background
if sys.argv[2] == "joins":
    background.join(os.getppid())
with open(sys.argv[1], "r+b") as file:
    shared = mmap.mmap(file.fileno(), 8)
print(os.getpid(), flush=True)
count = 0
while True:
    count += 1
    shared[:] = struct.pack("q", count)
"""
_ENDS_WHILE_OTHERS_STAND_STILL = """
import os, signal, subprocess, sys
from collage.core.background import standing_still
child = subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2], "joins"], stdout=subprocess.PIPE)
number = child.stdout.readline().decode()
with standing_still():
    print(number, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(LOCK_VARIABLE, str(tmp_path / "lock"))
    return tmp_path / "lock"


@pytest.fixture
def counter(tmp_path: Path) -> Path:
    path = tmp_path / "counter"
    path.write_bytes(bytes(8))
    return path


@contextmanager
def counting(counter: Path, *, joins: bool = True) -> Iterator[tuple[int, Callable[[], int]]]:
    """A process that counts in the background; its id, and what it has counted so far."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _COUNTS, str(counter), "joins" if joins else "does not"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as child:
        try:
            assert child.stdout is not None
            number = int(child.stdout.readline())
            with counter.open("r+b") as file, mmap.mmap(file.fileno(), 8) as shared:
                yield number, lambda: struct.unpack("q", shared[:])[0]
        finally:
            child.kill()


def goes_on(count: Callable[[], int]) -> bool:
    """Whether the count grows within some seconds."""
    before, end = count(), time.monotonic() + 10
    while count() == before and time.monotonic() < end:
        time.sleep(0.001)
    return count() != before


def stands(count: Callable[[], int]) -> bool:
    """Whether the count is the same for a while."""
    before = count()
    time.sleep(0.05)
    return count() == before


def test_it_stands_still_and_goes_on(counter: Path) -> None:
    with counting(counter) as (_, count):
        for _ in range(3):
            assert goes_on(count)
            with standing_still():
                assert stands(count)
        assert goes_on(count)


def test_the_file_of_a_process_that_has_ended_is_removed(counter: Path) -> None:
    with counting(counter):
        pass
    place = background.folder()
    assert place is not None and len([*place.iterdir()]) == 1
    with standing_still():
        assert not [*place.iterdir()]


def test_ids_of_another_container_are_nobody_here(counter: Path) -> None:
    place = background.folder()
    assert place is not None
    with counting(counter, joins=False) as (number, count):
        place.mkdir()
        (place / f"{number}.1").touch()
        with standing_still():
            assert goes_on(count)
        assert (place / f"{number}.1").exists()


def test_it_ends_with_its_parent_though_it_stands_still(counter: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _ENDS_WHILE_OTHERS_STAND_STILL, _COUNTS, str(counter)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, env=environment, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    stat, end = Path(f"/proc/{int(ended.stdout)}/stat"), time.monotonic() + 10
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < end
        time.sleep(0.01)


def test_there_is_no_background_without_a_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOCK_VARIABLE, "")
    assert background.folder() is None
    with pytest.raises(BackgroundError, match="no lock"):
        background.join(os.getppid())
    with standing_still():
        pass
