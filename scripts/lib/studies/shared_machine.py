"""What a compile on a shared machine costs: beside a busy core, and two at once, against one on the idle machine."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from collage.bench.compiled import Options
from collage.bench.engines import OURS, prepare
from collage.bench.race import race
from collage.core.progress import Progress
from collage.errors import CollageError
from collage.measure_db.busy import busy_limit
from scripts.lib.studies.busy import busy_core

ALONE, BESIDE, LATER = "alone", "beside a busy core", "later, with the same database"
TOGETHER = ("one of two at once", "other of two at once")


@dataclass(frozen=True)
class Compile:
    """A compile in a process of its own: where its database and its module are, and further arguments."""

    model: Path
    folder: Path
    database: str
    module: str
    threads: int
    more: tuple[str, ...] = ()

    @property
    def file(self) -> Path:
        """The module's file."""
        return self.folder / f"{self.module}.collage"

    def start(self) -> subprocess.Popen[str]:
        """Begin to compile."""
        command = [
            *(sys.executable, "-m", "collage", "compile", str(self.model), "-o", str(self.file)),
            *("--db", str(self.folder / self.database), "--threads", str(self.threads)),
            *("--json", "--quiet", *self.more),
        ]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def end(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        """Wait for the compile. Returns its seconds, its measurements, and how many of them are marked as busy."""
        out, errors = process.communicate()
        if process.returncode:
            raise CollageError(f"compiling {self.model}: {(errors.strip().splitlines() or ['it ended'])[-1]}")
        found = json.loads(out)
        with closing(sqlite3.connect(self.folder / self.database)) as connection:
            query = "SELECT count(*), total(busy > ?) FROM kernels WHERE busy IS NOT NULL"
            rows, marked = connection.execute(query, (busy_limit(),)).fetchone()
        return {
            "seconds": round(found["compile_s"], 1),
            "measurements": found["measurements_made"],
            "marked": round(marked / max(rows, 1), 3),
        }


def shared_machine(
    model: Path, options: Options, show: Callable[[Progress], None], *, more: Sequence[str] = ()
) -> dict[str, Any]:
    """Compile on fresh databases, and race the modules on the machine as it is afterwards.

    The ratios are those of the modules' times to the time of the one that was compiled alone.
    """
    with tempfile.TemporaryDirectory(prefix="collage-shared-") as name:
        folder = Path(name)

        def asked(database: str, number: int) -> Compile:
            return Compile(model, folder, database, f"module-{number}", options.threads, tuple(more))

        compiles = {
            ALONE: asked("alone.sqlite", 0),
            BESIDE: asked("beside.sqlite", 1),
            LATER: asked("beside.sqlite", 2),
            TOGETHER[0]: asked("one.sqlite", 3),
            TOGETHER[1]: asked("other.sqlite", 4),
        }
        found: dict[str, Any] = {}
        with busy_core() as busy:
            for position, what in enumerate((ALONE, BESIDE, LATER)):
                show(Progress("compile", position, len(compiles), what))
                with busy() if what == BESIDE else nullcontext():
                    found[what] = compiles[what].end(compiles[what].start())
        show(Progress("compile", 3, len(compiles), "two at once"))
        with ExitStack() as stack:
            started = {what: stack.enter_context(_running(compiles[what])) for what in TOGETHER}
            found |= {what: compiles[what].end(process) for what, process in started.items()}
        setup = prepare(model, threads=options.threads)
        setups = {what: replace(setup, engine=OURS, path=str(each.file)) for what, each in compiles.items()}
        raced = race(setups, required=[ALONE], rounds=options.rounds, progress=show)
    return {
        "model": model.name,
        "compiles": found,
        "timings": dict(raced.timings),
        "over_alone": {what: round(raced.ratio(what, ALONE), 4) for what in raced.timings},
        "failed": dict(raced.failed),
    }


@contextmanager
def _running(compile_: Compile) -> Iterator[subprocess.Popen[str]]:
    """A compile that has begun. It is killed at the end of the block where nobody has waited for it."""
    process = compile_.start()
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def rows_of(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A row of text for each compile: seconds, measurements, the share that is marked, time, and the ratio."""
    rows: list[tuple[str, ...]] = []
    for what, each in result["compiles"].items():
        timing, ratio = result["timings"].get(what), result["over_alone"].get(what)
        rows.append(
            (
                result["model"],
                what,
                f"{each['seconds']:.1f}",
                str(each["measurements"]),
                f"{each['marked']:.0%}",
                f"{timing['median_us'] / 1e3:.3f}" if timing else "-",
                f"{ratio:.3f}x" if ratio else "-",
            )
        )
    return rows
