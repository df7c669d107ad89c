"""The worker ends with its parent, whatever either is doing, and a script's own code is not run in it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

_SCRIPT = """
import os, sys
with open(sys.argv[1] + "/starts", "a") as starts:
    starts.write("x")
from collage.measure_db.database import Database
from collage.measure.measured_model import MeasuredModel
from collage.measure.measurer import Measurer
from collage.measure.worker.protocol import CandidateRequest
from collage.measure.worker.session import WorkerSession
from collage.measure.settings import CandidateLimits, MeasureSettings
from collage.backends.base import BuildOptions
from tests.helpers.backends_for_tests import NumpyBackend, chain_model
from tests.helpers.measure_db import hostile

class Local(NumpyBackend):  # defined in __main__
    name = "local"

backends = {"local": Local(), "hang": hostile.Hang(), "hang-with-lock": hostile.HangWithLock()}
versions = dict.fromkeys(backends, "1")
with Database(sys.argv[1] + "/db.sqlite") as database:
    settings = MeasureSettings(backends, versions, BuildOptions(threads=1), "test", limits=CandidateLimits(600.0))
    session = WorkerSession(MeasuredModel(chain_model()), settings)
    with Measurer(session, database) as measurer:
        (outcome,) = measurer.measure([CandidateRequest((0,), "local")]).values()
        print(type(outcome).__name__, session.worker(1)._process.pid, session.folder, flush=True)
        if sys.argv[2] == "idle":
            sys.stdin.read()
        elif sys.argv[2] != "done":
            measurer.measure([CandidateRequest((1,), sys.argv[2])])
"""


def _start(folder: Path, what: str) -> tuple[subprocess.Popen[str], int, Path]:
    """The script in a process of its own, its worker's id, and the session's folder."""
    script = folder / "script.py"
    script.write_text(_SCRIPT)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(folder)}
    parent = subprocess.Popen(
        [sys.executable, str(script), str(folder), what],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert parent.stdout is not None
    kind, pid, session = parent.stdout.readline().split()
    assert kind == "Measurement"
    return parent, int(pid), Path(session)


def _runs(worker: int) -> bool:
    try:
        state = Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"  # nobody may have waited for it yet


def _gone(worker: int, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if not _runs(worker):
            return True
        time.sleep(0.02)
    return False


def _removed(folder: Path, within_s: float) -> bool:
    """Whether nothing is left of the folder after at most this time: the last of several processes removes it."""
    deadline = time.monotonic() + within_s
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return not folder.exists()


def test_script_runs_once_and_its_backend_is_measured(tmp_path: Path) -> None:
    parent, worker, session = _start(tmp_path, "done")
    output, errors = parent.communicate(timeout=30)
    assert (parent.returncode, output, errors) == (0, "", "")
    assert (tmp_path / "starts").read_text() == "x"
    assert _gone(worker, 5)
    assert not session.exists()


@pytest.mark.parametrize("what", ["idle", "hang"])
def test_killing_the_parent_ends_the_worker_and_removes_its_files(tmp_path: Path, what: str) -> None:
    parent, worker, session = _start(tmp_path, what)
    time.sleep(0.3)
    assert _runs(worker)
    parent.send_signal(signal.SIGKILL)
    parent.communicate(timeout=10)
    assert _gone(worker, 5)
    assert _removed(session, 5)


def test_a_worker_stuck_with_pythons_lock_ends_by_its_own_alarm(tmp_path: Path) -> None:
    parent, worker, _ = _start(tmp_path, "hang-with-lock")
    time.sleep(0.3)
    parent.send_signal(signal.SIGKILL)
    parent.communicate(timeout=10)
    os.kill(worker, signal.SIGALRM)  # what its timer does, 2 x 600 + 30 s later
    assert _gone(worker, 5)


def test_ctrl_c_shows_no_traceback_of_the_worker(tmp_path: Path) -> None:
    parent, worker, session = _start(tmp_path, "hang")
    time.sleep(0.3)
    os.kill(worker, signal.SIGINT)  # before its parent may end it
    parent.send_signal(signal.SIGINT)
    _, errors = parent.communicate(timeout=10)
    assert errors.count("Traceback") == 1  # the script's own
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert _gone(worker, 5)
    assert not session.exists()
