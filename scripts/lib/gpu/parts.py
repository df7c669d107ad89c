"""Runs the parts one after another within the time that there is, and gathers what they have written."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.lib.gpu.fragment import write_json
from scripts.lib.gpu.task import Task

ROOT = Path(__file__).resolve().parents[3]
_TAIL = 3000
_CHECK_S = 120.0


@dataclass(frozen=True)
class Part:
    """A process: its module, its argument, the name of its results, and the seconds that it may take."""

    name: str
    module: str
    argument: str
    limit_s: float


def parts_of(tasks: Sequence[Task]) -> Iterator[Part]:
    """The checks, and each network."""
    yield Part("checks", "scripts.lib.gpu.check_process", "", _CHECK_S)
    for task in tasks:
        limit_s = 2 * task.budget_s + (240 if task.rivals else 60)
        yield Part(task.name, "scripts.lib.gpu.network", json.dumps(task.plain()), limit_s)


def run_parts(parts: Sequence[Part], out: Path, seconds: float, head: dict[str, Any]) -> dict[str, Any]:
    """Run the parts until the seconds are over. The file is whole after each part, and while one runs."""
    end = time.monotonic() + seconds
    found: dict[str, Any] = {**head, "parts": {}}
    write_json(out, found)
    for part in parts:
        left = end - time.monotonic()
        if left < 10:
            found["parts"][part.name] = {"left out": "the time is over"}
        else:
            found["parts"][part.name] = _run(part, min(part.limit_s, left))
        write_json(out, found)
    return found


def _run(part: Part, limit_s: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path, said = Path(folder) / "found.json", Path(folder) / "said"
        command = [sys.executable, "-m", part.module, *([part.argument] if part.argument else []), str(path)]
        start = time.monotonic()
        with said.open("w") as output:
            try:
                done = subprocess.run(
                    command, cwd=ROOT, stdout=output, stderr=output, timeout=limit_s, check=False
                )
                status = "" if not done.returncode else f"ended with status {done.returncode}"
            except subprocess.TimeoutExpired:
                status = f"stopped after {limit_s:.0f} s"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        if status:
            found["ended"] = status
            found["said"] = said.read_text(errors="replace")[-_TAIL:]
        return {**found, "wall_s": round(time.monotonic() - start, 1)}
