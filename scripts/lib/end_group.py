"""Ending a process with all that it has started."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from typing import IO, Any


def end_group(process: subprocess.Popen[Any], errors: IO[bytes]) -> None:
    """Kill a process, which leads its group, and the group, and close its pipes and the file of its errors.

    A second call does nothing.
    """
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for stream in (process.stdin, process.stdout, errors):
        if stream is not None:
            with suppress(OSError):
                stream.close()
