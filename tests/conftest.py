"""What all tests share: little effort is spent on each measurement, as tests check what comes of it."""

from __future__ import annotations

import gc
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from collage.core import forked_process
from collage.core.machine_lock import LOCK_VARIABLE
from tests.helpers.cuda_processes import BUILT_VARIABLE

# Measuring reads it when it is imported. Its name is that of collage.measure.timing.effort.EFFORT_VARIABLE.
_LITTLE = {"kernel_s": 0.005, "settle_s": 0.005, "turn_s": 0.004, "noted_s": 0.05}
os.environ["COLLAGE_EFFORT"] = json.dumps({"usual": _LITTLE, "exhaustive": _LITTLE})

# Tests that run beside each other do not wait for each other's measurements. What is about that sets its own values.
# Workers and commands that tests start inherit these.
os.environ[LOCK_VARIABLE] = ""

# Commands and scripts that tests start import TVM without PyTorch.
_STARTED = str(Path(__file__).parent / "helpers" / "started")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_STARTED, os.environ.get("PYTHONPATH"))))

# A job in the background is started with SIGINT ignored, one under nohup with SIGHUP, and children inherit that: tests
# could not interrupt or hang up on theirs. What has a handler here is as usual in children.
signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)


_LONG = ("tests/slow/", "tests/compile/")
"""Tiers with long tests. They come first, so that no process is left with them at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the files: those with long tests first."""
    items.sort(key=lambda item: not item.nodeid.startswith(_LONG))


def pytest_collection_finish() -> None:
    """All tests and what they import stay to the end: collections of garbage need not look at them each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def fork_servers() -> Iterator[None]:
    """One process imports TVM for the workers of all tests."""
    with forked_process.ForkServers() as forked_process.kept:
        yield
    forked_process.kept = None


@pytest.fixture(scope="session", autouse=True)
def built(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What stands in for NVIDIA's libraries is compiled once for the processes that tests run beside each other in."""
    own = tmp_path_factory.getbasetemp()
    os.environ[BUILT_VARIABLE] = str((own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "built")
