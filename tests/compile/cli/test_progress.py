"""Progress on stderr: lines in a log, a bar in a terminal, nothing when nobody asked."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from collage.core.progress import Progress
from collage.report.progress_display import display

_CODE = """
from collage.core.progress import Progress
from collage.report.progress_display import display
with display(None) as show:
    for done in range(3):
        show(Progress("measure", done, 3, "tvm [bold]relu", best="best so far 4 ms"))
    show(Progress("place", 0, 0, "x" * 500))
"""


@pytest.mark.parametrize("enabled", [None, False])
def test_silent_in_a_pipe(enabled: bool | None, capfd: pytest.CaptureFixture[str]) -> None:
    with display(enabled) as show:
        show(Progress("measure", 0, 3))
    assert capfd.readouterr() == ("", "")


def test_a_line_for_each_stage_new_best_result_and_note(capsys: pytest.CaptureFixture[str]) -> None:
    with display(True) as show:
        show(Progress("import", 0, 1))
        for done in range(3):
            show(Progress("measure", done, 3, "tvm relu", best="4 ms", note="the machine is busy" if done else ""))
        show(Progress("place", 0, 2, best="3 ms", note="the machine is busy"))
    lines = ["4 ms", "measure (3)", "the machine is busy", "3 ms", "place (2)", "the machine is busy"]
    assert capsys.readouterr() == ("", "".join(f"collage: {line}\n" for line in lines))


def test_a_bar_in_a_terminal() -> None:
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen([sys.executable, "-c", _CODE], stdout=subprocess.PIPE, stderr=follower, env=environment)
    os.close(follower)
    text = b""
    while True:
        try:
            chunk = os.read(leader, 4096)
        except OSError:  # how Linux says that the other end is closed
            break
        if not chunk:
            break
        text += chunk
    os.close(leader)
    assert process.communicate()[0] == b""
    assert process.returncode == 0
    for word in (b"measure", b"best so far 4 ms | tvm [bold]relu", b"place"):
        assert word in text
