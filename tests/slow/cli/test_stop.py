"""Compiles in processes of their own that a signal or a budget stops, before and after there is a module."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import collage
from collage.core.progress import Progress
from collage.measure_db.database import Database
from tests.helpers.cli.helpers import json_of
from tests.helpers.models import conv_net

KEPT = (
    "collage: interrupted; no file was written; the measurements made so far are kept, so the next run goes on from "
    "here.\n"
)
GOES_ON = "collage: warning: interrupted; handing over the best module so far (Ctrl-C again ends at once)\n"


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("net") / "net.onnx"
    onnx.save_model(conv_net(), str(path))
    return path


def started(network: Path, folder: Path, *flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "collage", "compile", network, "-o", folder / "out.collage"]
    command += ["--db", folder / "db.sqlite", *flags]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def read_until(process: subprocess.Popen[str], start: str) -> str:
    """Read stderr up to the first line that begins so."""
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith(start):
            return line
    raise AssertionError(f"it ended without {start!r}")


def is_right(path: Path) -> bool:
    x = np.random.default_rng(1).standard_normal((1, 3, 16, 16)).astype(np.float32)
    session = ort.InferenceSession(conv_net().SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": x})
    found = collage.load(path)(x)
    return bool(np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max())


def measured(path: Path) -> int:
    """The kernels in a database."""
    with Database(path) as database:
        stats = database.stats()
        return sum(stats.measured.values()) + sum(stats.rejected.values())


@pytest.fixture(scope="module")
def interrupted(network: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a compile that was interrupted while it measured; its report is in a file beside the module."""
    folder = tmp_path_factory.mktemp("interrupted")
    process = started(network, folder, "--json")
    assert read_until(process, "collage: best so far").endswith(" as written)\n")
    read_until(process, "collage: measure (")
    while measured(folder / "db.sqlite") < 5:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    printed, text = process.communicate(timeout=120)
    assert process.returncode == 0, text
    assert GOES_ON in text
    (folder / "report.json").write_text(printed)
    return folder


def test_ctrl_c_writes_the_best_module_so_far(interrupted: Path) -> None:
    report = json.loads((interrupted / "report.json").read_text())
    assert report["ended"] == "interrupt"
    assert report["best_so_far"][0]["label"].endswith("as written")
    assert report["measured_us"] > 0
    assert report == {**json_of("show", interrupted / "out.collage", "--json"), "output": report["output"]}
    assert is_right(interrupted / "out.collage")


def test_the_next_compile_goes_on_from_there(interrupted: Path, network: Path) -> None:
    database = interrupted / "db.sqlite"
    made_before = json.loads((interrupted / "report.json").read_text())["measurements_made"]
    fresh = interrupted / "fresh.sqlite"
    asked: list[int] = []

    def show(progress: Progress) -> None:
        if progress.stage == "measure" and progress.total > 1 and not progress.done:
            asked.append(progress.total)
            if len(asked) == 1 and db is fresh:
                raise KeyboardInterrupt

    db = fresh
    collage.compile(network, db=db, progress=show)
    everything = asked.pop()
    db = database
    done = collage.compile(network, db=db, progress=show)
    assert done.report.ended == "finished"
    assert asked[0] < everything
    assert made_before > 0
    again = collage.compile(network, db=db, progress=False)
    assert again.report.measurements_made == 0
    assert again.report.measured_us == done.report.measured_us
    with Database(database) as known:
        assert known.stats().networks > 0


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_before_the_first_module_ends_the_compile(
    network: Path, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    process = started(network, tmp_path)
    deadline = time.monotonic() + 60
    while not (tmp_path / "db.sqlite").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(number)
    printed, text = process.communicate(timeout=60)
    assert process.returncode == status
    assert (printed, text) == ("", KEPT)
    assert not (tmp_path / "out.collage").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_that_end_a_compile_write_the_module_too(
    network: Path, tmp_path: Path, number: signal.Signals
) -> None:
    """A batch system sends SIGTERM when a job's time is over, and SIGKILL some seconds later."""
    process = started(network, tmp_path)
    read_until(process, "collage: measure (")
    process.send_signal(number)
    _, text = process.communicate(timeout=120)
    assert process.returncode == 0, text
    assert GOES_ON in text
    assert is_right(tmp_path / "out.collage")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once(network: Path, tmp_path: Path, number: signal.Signals) -> None:
    process = started(network, tmp_path)
    read_until(process, "collage: measure (")
    process.send_signal(number)
    read_until(process, GOES_ON.strip())
    process.send_signal(number)
    printed, text = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert (printed, "measurements made so far are kept" in text) == ("", True)
    assert not (tmp_path / "out.collage").exists()


def test_a_budget_that_is_too_short_still_gives_a_module(network: Path, tmp_path: Path) -> None:
    process = started(network, tmp_path, "--budget", "0.01", "--json")
    printed, text = process.communicate(timeout=120)
    assert process.returncode == 0, text
    assert "the budget is over, and nothing is ready" in text
    report = json.loads(printed)
    assert (report["ended"], report["budget_s"], len(report["regions"])) == ("budget", 0.01, 1)
    assert is_right(tmp_path / "out.collage")
