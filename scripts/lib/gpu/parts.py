"""Runs the parts one after another within the time that there is, and gathers what they have written."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scripts.lib.gpu.task import Task
from scripts.lib.json_file import write_json

ROOT = Path(__file__).resolve().parents[3]
_TAIL = 3000
_CHECK_S, _LEAST_S, _POLL_S = 120.0, 10.0, 1.0
_DIES_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of Linux."""
_NETWORK_S, _RIVALS_S = 90.0, 300.0
"""The most seconds of a part: what a network takes besides its compile, and what PyTorch's compiler may take."""
_LEAST_NETWORK_S = 60.0
"""The least: half of it is over before the search begins, and a module of a few seconds' search tells nothing."""


@dataclass(frozen=True)
class Part:
    """A process: its name in the results, its module, its argument, and the seconds that it may take.

    It gets so many ``shares`` of the time that is left, where each part after it has its own. What it does not use is
    left to them. A ``greedy`` one takes all that is left, since half of it would be worth nothing. With fewer than
    ``least_s`` seconds it is left out.
    """

    name: str
    module: str
    argument: str
    limit_s: float
    shares: float = 1.0
    greedy: bool = False
    least_s: float = _LEAST_S


def parts_of(tasks: Sequence[Task]) -> Iterator[Part]:
    """The checks, and then each precision and batch: its networks, and PyTorch's compiler, which takes longest.

    Only the first precision and batch have shares of the time. The others get what is left, in order.
    """
    yield Part("checks", "scripts.lib.gpu.check_process", "", _CHECK_S, 3.0)
    points = dict.fromkeys((each.precision, each.batch) for each in tasks)
    for number, point in enumerate(points):
        found = _parts_of([each for each in tasks if (each.precision, each.batch) == point])
        yield from found if number == 0 else (replace(each, shares=0.0) for each in found)


def _parts_of(tasks: Sequence[Task]) -> Iterator[Part]:
    for task in tasks:
        about, shares = json.dumps(replace(task, rivals=False).plain()), 2.0 * task.weight
        limit_s, least_s = task.budget_s + _NETWORK_S, _LEAST_S if task.small else _LEAST_NETWORK_S
        yield Part(task.name, "scripts.lib.gpu.network", about, limit_s, shares, least_s=least_s)
    for task in tasks:
        if task.rivals:
            name = f"{task.name} against torch.compile"
            about = json.dumps(task.plain())
            yield Part(name, "scripts.lib.gpu.rivals", about, _RIVALS_S, task.weight, greedy=True)


def run_parts(
    parts: Sequence[Part],
    out: Path,
    seconds: float,
    head: dict[str, Any],
    before: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Run the parts until the seconds are over. The file is whole after each step of each part.

    What an earlier run has found (``before``, by the names of parts) is taken over where it is whole.
    """
    end = time.monotonic() + seconds
    kept = {name: each for name, each in (before or {}).items() if is_whole(each)}
    found: dict[str, Any] = {**head, "parts": dict(kept)}
    write_json(out, found)
    parts = [each for each in parts if each.name not in kept]
    for at, part in enumerate(parts):
        left = end - time.monotonic()
        if left < part.least_s:
            found["parts"][part.name] = {"left out": "the time is over"}
            write_json(out, found)
            continue
        shares = sum(each.shares for each in parts[at:])
        share = 1.0 if part.greedy or not shares else part.shares / shares
        limit_s = min(part.limit_s, max(part.least_s, left * share))

        def keep(so_far: dict[str, Any], name: str = part.name) -> None:
            found["parts"][name] = so_far
            write_json(out, found)

        _run(part, limit_s, keep)
    return found


def is_whole(found: Mapping[str, Any]) -> bool:
    """Whether a part has ended by itself. Steps of it may have failed."""
    return "wall_s" in found and "ended" not in found


def _run(part: Part, limit_s: float, keep: Callable[[dict[str, Any]], None]) -> None:
    """Run a part, and keep what it has found so far, again and again."""
    with tempfile.TemporaryDirectory() as folder:
        path, said = Path(folder) / "found.json", Path(folder) / "said"
        command = [sys.executable, "-m", part.module, *([part.argument] if part.argument else [])]
        start = time.monotonic()
        status = ""
        with said.open("w") as output:
            child = subprocess.Popen(
                [*command, str(path), f"{limit_s:.1f}"],
                cwd=ROOT,
                stdout=output,
                stderr=output,
                preexec_fn=_in_a_group_that_ends_with_this,
            )
            try:
                while child.poll() is None and not status:
                    try:
                        child.wait(_POLL_S)
                    except subprocess.TimeoutExpired:
                        keep(_read(path))
                    if child.poll() is None and time.monotonic() - start > limit_s:
                        status = f"stopped after {limit_s:.0f} s"
            finally:
                _end(child)
        if not status and child.returncode:
            status = f"ended with status {child.returncode}"
        found = _read(path)
        if status:
            found["ended"] = status
            found["said"] = said.read_text(errors="replace")[-_TAIL:]
        keep({**found, "wall_s": round(time.monotonic() - start, 1)})


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def _in_a_group_that_ends_with_this() -> None:
    """Let the process be the first of a group, and end where its parent is killed: it would disturb what comes next."""
    os.setpgrp()
    ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the process with all that it has started: workers, and the processes of PyTorch's compiler."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    child.wait()
