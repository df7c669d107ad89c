"""Two versions of Collage on the same model: their speed and their compile time."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collage.bench.compiled import Options
from collage.core.progress import Progress
from collage.errors import CollageError
from scripts.lib import ROOT
from scripts.lib.studies.each import say

CHILD = Path(__file__).with_name("version_child.py")
BURST_S = 0.25


@dataclass(frozen=True)
class Version:
    """A checkout of Collage."""

    name: str
    root: Path

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a child process that imports this version."""
        return subprocess.Popen(
            [sys.executable, str(CHILD), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(self.root)},
        )

    def compile(self, model: Path, module: Path, database: Path, threads: int) -> dict[str, Any]:
        """Compile ``model`` in a child process. Returns figures from its report. Raises CollageError when it fails."""
        child = self.start("compile", str(model), str(module), str(database), str(threads))
        printed, _ = child.communicate()
        if child.returncode:
            raise CollageError(f"{self.root} cannot compile {model}")
        found: dict[str, Any] = json.loads(printed.splitlines()[-1])
        return found


@dataclass(frozen=True)
class Comparison:
    """A study that compares the checkout ``before`` with this one."""

    before: Path

    def __call__(self, model: Path, options: Options, show: Callable[[Progress], None]) -> dict[str, Any]:
        """Compile ``model`` with both versions and run both modules in turns. Raises CollageError."""
        versions = (Version("before", self.before), Version("now", ROOT))
        found: dict[str, Any] = {"model": model.stem}
        with tempfile.TemporaryDirectory(prefix="bench-versions-") as folder, ExitStack() as stack:
            modules = {version: Path(folder) / f"{version.name}.collage" for version in versions}
            for number, (version, module) in enumerate(modules.items()):
                show(Progress("compile", number, len(versions), version.name))
                database = module.with_suffix(".sqlite")
                found[version.name] = version.compile(model, module, database, options.threads)
            children = {}
            for version, module in modules.items():
                child = stack.enter_context(version.start("run", str(module)))
                stack.callback(child.kill)
                children[version] = child
                _answer(child)
            times: dict[Version, list[float]] = {version: [] for version in versions}
            for number in range(options.rounds):
                show(Progress("run", number, options.rounds))
                for version in versions if number % 2 else reversed(versions):
                    print(BURST_S, file=children[version].stdin, flush=True)
                    times[version].append(float(_answer(children[version])))
        found |= summary(times[versions[0]], times[versions[1]])
        found["compile now/before"] = round(found["now"]["compile_s"] / found["before"]["compile_s"], 2)
        say(json.dumps(found))
        return found


def summary(before: list[float], now: list[float]) -> dict[str, Any]:
    """Medians in milliseconds, and the quartiles of the ratios of both versions' times in each round."""
    ratios = [one / other for one, other in zip(before, now, strict=True)]
    quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return {
        "milliseconds": {
            name: round(statistics.median(each), 3) for name, each in (("before", before), ("now", now))
        },
        "before/now": [round(ratio, 3) for ratio in quartiles],
    }


def _answer(child: subprocess.Popen[str]) -> str:
    assert child.stdout
    line = child.stdout.readline()
    if not line:
        raise CollageError(f"a process of {CHILD.name} ended; see above")
    return line.strip()
