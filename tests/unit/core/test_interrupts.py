"""Ctrl-C within imports."""

from __future__ import annotations

import importlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from collage.cli.signals import Terminated, ending_on_signals
from collage.core.interrupts import outside_imports

pytestmark = pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(), reason="signals go to the main thread"
)


@pytest.fixture(autouse=True)
def action() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, outside_imports)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_waits_for_the_end_of_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "interrupted.py").write_text(
        "import signal\nsignal.raise_signal(signal.SIGINT)\nsum(range(9))\ndone = True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def interrupted() -> None:
        importlib.import_module("interrupted")
        time.sleep(10)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert sys.modules["interrupted"].done


def test_ctrl_c_interrupts_all_else_at_once() -> None:
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_sigterm_waits_for_the_end_of_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "terminated.py").write_text(
        "import signal\nsignal.raise_signal(signal.SIGTERM)\nsum(range(9))\ndone = True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def terminated() -> None:
        with ending_on_signals():
            importlib.import_module("terminated")
            time.sleep(4)  # less than the patience with a process that does not end

    with pytest.raises(Terminated):
        terminated()
    assert sys.modules["terminated"].done
