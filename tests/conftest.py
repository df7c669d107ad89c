"""What all tests share: little time is spent on each measurement."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from collage.core.machine_lock import LOCK_VARIABLE
from collage.measure_db.busy import BUSY_VARIABLE
from collage.measure_db.effort import FIRST, FULL

# Tests that run beside each other neither wait for each other's measurements, nor make them again on a quiet machine.
# What is about that sets its own values. Workers and commands that tests start inherit these.
os.environ[LOCK_VARIABLE] = ""
os.environ[BUSY_VARIABLE] = "1"

# A job in the background is started with SIGINT ignored, one under nohup with SIGHUP, and children inherit that: tests
# could not interrupt or hang up on theirs. What has a handler here is as usual in children.
signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)


_LONG = ("tests/scripts/", "tests/integration/", "tests/cli/", "tests/native/")
"""Where single tests take long. They come first, so that no process is left with them at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the files: those with long tests first."""
    items.sort(key=lambda item: not item.nodeid.startswith(_LONG))


@pytest.fixture(scope="session", autouse=True)
def little_effort() -> Iterator[None]:
    """Tests check what comes of measurements, not that they are precise. Everything else is as in a full compile.

    It reaches workers, which are told, but no ``collage`` that a test starts.
    """
    usual = {effort: vars(effort).copy() for effort in (FULL, FIRST)}
    vars(FULL).update(kernel_s=0.03, rounds=8, compare_s=2.0, settle_s=0.01, turn_s=0.01, speeds_s=0.0)
    vars(FIRST).update(rounds=3, compare_s=0.2, settle_s=0.0, turn_s=0.01)
    yield
    for effort, settings in usual.items():
        vars(effort).update(settings)
