"""Folders that cannot be written, and processes that cannot be started, are no fault of a kernel."""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NoReturn

import pytest

from collage.errors import MeasurementError
from collage.measure.measured_model import MeasuredModel
from collage.measure.settings import MeasureSettings
from collage.measure.worker import session
from collage.measure.worker.process import WorkerProcess
from tests.helpers.backends_for_tests import NumpyBackend, chain_model
from tests.slow.measure_db.test_measurer import OPTIONS


def refuse(*_: Any, **__: Any) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def told(folder: Path) -> str:
    return rf"cannot be written to {folder}: No space left on device\. Make room there, .* TMPDIR\."


@pytest.mark.parametrize("refused", ["save_model", "TemporaryFolder"])
def test_the_folder_of_the_model(refused: str, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, refused, refuse)
    settings = MeasureSettings({"numpy": NumpyBackend()}, {"numpy": "1"}, OPTIONS, "test machine")
    each = session.WorkerSession(MeasuredModel(chain_model()), settings)
    try:
        with pytest.raises(MeasurementError, match=told(temporary)):
            each.worker(1)
    finally:
        each.close()
    assert not [*temporary.glob("collage-measure-*")]


def test_a_process_that_cannot_be_started(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> NoReturn:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "Popen", full)
    with pytest.raises(MeasurementError, match=r"cannot be started: Resource .* end other processes"):
        WorkerProcess(1)
    assert not [*temporary.glob("collage-worker-*")]
