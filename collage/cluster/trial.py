"""Trying an address in a process of its own: where nobody answers, or no Ray does, Ray waits on and on.

This file is run as a program.
"""

from __future__ import annotations

import os
import subprocess
import sys


def failure(address: str, limit_s: float) -> str:
    """Why Ray cannot connect to the address within ``limit_s`` seconds, or "" where it can."""
    command = [sys.executable, os.path.abspath(__file__), address]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return f"no Ray answers there within {limit_s:g} s"
    lines = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if lines:
        return lines[-1].removeprefix(_MARK)
    return f"Ray has ended the process with status {done.returncode}"


_MARK = "collage: "


def _main(address: str) -> None:
    import ray

    said = ""
    try:
        ray.init(address, log_to_driver=False, logging_level="ERROR", configure_logging=False)
        ray.nodes()
    except BaseException as error:  # Ray also raises SystemExit
        said = f"{type(error).__name__}: {' '.join(str(error).split())}"
    print(f"{_MARK}{said}", flush=True)
    os._exit(0)  # what Ray does at its end takes time, and changes nothing


if __name__ == "__main__":
    sys.path.pop(0)  # this folder, whose modules would shadow others
    _main(sys.argv[1])
