"""Kill compiles at random moments. The database must open afterwards, and the next compile must continue from it.

    scripts/check_crashes                          SqueezeNet, twenty kills (an hour, or less on a quiet machine)
    scripts/check_crashes model.onnx --kills 5     a model of yours

SIGKILL, SIGTERM and SIGHUP take turns. After each: the database opens and is sound, all that was in it before still
is, nothing was measured a second time, no process of the compile lives on, and no temporary file is left: after
SIGKILL when the next one has run, else at once. A compile that ends before its moment comes is followed by one with a
new database. In the end one is left to finish, and the one after that must measure nothing. Exit status: 0, or 1.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from collage.errors import DatabaseError
from collage.measure_db.database import Database
from scripts.lib import ROOT, parser_of
from scripts.lib.light_models import FOLDER
from scripts.lib.processes import descendants

_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP)
_IMPROVED = {("facts", "compile")}
"""Rows that a compile may replace by better ones."""
_END_S = 15.0  # a worker's library may be busy when its parent dies


class CrashError(Exception):
    """Something was lost, measured again, or left running."""


@dataclass(frozen=True)
class Compile:
    """A compile of ``model`` in a process of its own, with its files and temporary files in the folder ``home``."""

    model: Path
    home: Path
    options: Sequence[str] = ()

    @property
    def database(self) -> Path:
        return self.home / "measurements.sqlite"

    @property
    def temporary(self) -> Path:
        """The folder of its temporary files."""
        return self.home / "tmp"

    def start(self) -> subprocess.Popen[bytes]:
        """Start the compile. Its messages go to ``compile.txt``."""
        self.temporary.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {"TMPDIR": str(self.temporary), "PYTHONPATH": str(ROOT)}
        files = [str(self.model), "-o", str(self.home / "out.collage"), "--db", str(self.database)]
        command = [sys.executable, "-m", "collage", "compile", *files, "--quiet", *self.options]
        with (self.home / "compile.txt").open("wb") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def finish(self) -> float:
        """Compile to the end. Returns the seconds that it took. Raises CrashError."""
        began = time.monotonic()
        self.check(self.start().wait())
        return time.monotonic() - began

    def check(self, status: int) -> None:
        """Raise CrashError, with its last messages, if the compile failed by itself or left files behind."""
        if status:
            raise CrashError(f"the compile failed: {(self.home / 'compile.txt').read_text()[-500:]}")
        self.check_clean()

    def check_clean(self) -> None:
        """Raise CrashError if there are temporary files, in the temporary folder or beside the output.

        A worker that was just starting removes its own a moment after its parent has ended.
        """
        deadline = time.monotonic() + _END_S
        while left := [*self.temporary.iterdir(), *self.home.glob(".*")]:
            if time.monotonic() > deadline:
                raise CrashError(f"left behind: {', '.join(each.name for each in left)}")
            time.sleep(0.05)


def kill_after(process: subprocess.Popen[bytes], seconds: float, number: int = signal.SIGKILL) -> bool:
    """Send a signal to the process after ``seconds``; False if it ended before.

    Raises CrashError if it or a child survives, or its status is not that of a program which the signal has ended.
    """
    try:
        process.wait(seconds)
        return False
    except subprocess.TimeoutExpired:
        pass
    os.kill(process.pid, signal.SIGSTOP)  # else it may start another child between the look and the kill
    children = descendants(process.pid)
    os.kill(process.pid, number)
    os.kill(process.pid, signal.SIGCONT)
    deadline = time.monotonic() + _END_S
    try:
        status = process.wait(_END_S)
    except subprocess.TimeoutExpired as error:
        process.kill()
        raise CrashError(f"still running {_END_S:g} s after signal {number}") from error
    if status not in (-number, 128 + number):
        if status == 0:  # it had all but ended
            return False
        raise CrashError(f"ended with status {status} after signal {number}")
    while left := [pid for pid in children if _runs(pid)]:
        if time.monotonic() > deadline:
            raise CrashError(f"still running {_END_S:g} s after their parent was killed: {left}")
        time.sleep(0.05)
    return True


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


class Row(NamedTuple):
    """The time when a row of a database was recorded, and whether it is a kernel that has lost a race."""

    created: float
    lost: bool


Rows = Mapping[tuple[Any, ...], Row]
"""The rows of a database, by their tables and keys."""

_KEYS = {
    "kernels": "digest, backend, backend_version, settings, threads, hardware, tvm_version",
    "networks": "graph, placement, threads, hardware, versions",
    "facts": "name, key",
}


def recorded(database: Path) -> Rows:
    """All rows of the database by key. Raises CrashError if it does not open, or SQLite finds damage."""
    if not database.exists():
        return {}
    try:
        Database(database).close()
    except DatabaseError as error:
        raise CrashError(f"the database does not open: {error}") from error
    connection = sqlite3.connect(database)
    try:
        (health,) = connection.execute("PRAGMA integrity_check").fetchone()
        if health != "ok":
            raise CrashError(f"the database is damaged: {health}")
        found = {}
        for table, key in _KEYS.items():
            raced = "rival_us IS NOT NULL" if table == "kernels" else "0"
            for *values, created, lost in connection.execute(f"SELECT {key}, created, {raced} FROM {table}"):
                row = (table, *values)
                found[row] = Row(created, bool(lost))
        return found
    finally:
        connection.close()


def check_kept(before: Rows, after: Rows, *, killed: bool = False) -> int:
    """The number of new rows. Raises CrashError if a row is gone or was measured again.

    Of a kernel that has lost a race only a lower bound of its time is kept. If the compile before was ``killed``,
    the next one may race such a kernel again, or measure it to the end.
    """
    lost = before.keys() - after.keys()
    again = [
        key
        for key, row in before.items()
        if key in after and after[key].created != row.created and key[:2] not in _IMPROVED and not (killed and row.lost)
    ]
    if lost or again:
        raise CrashError(f"{len(lost)} lost, {len(again)} measured again: {[*lost, *again][:3]}")
    return len(after) - len(before)


@dataclass(frozen=True)
class Round:
    """One compile: when it was killed (None if it ended before), how many records it made, and how many there are."""

    killed_after_s: float | None
    made: int
    known: int


def crash(job: Compile, within_s: float, rng: random.Random, number: int = signal.SIGKILL) -> Round:
    """Kill the compile at a random moment within so many seconds; check that nothing is lost, repeated or left.

    After SIGKILL files may be left, until the next compile begins. Raises CrashError.
    """
    before = recorded(job.database)
    moment = rng.uniform(0.0, within_s)
    process = job.start()
    killed = kill_after(process, moment, number)
    if not killed:
        job.check(process.returncode)
    elif number != signal.SIGKILL:
        job.check_clean()
    after = recorded(job.database)
    made = check_kept(before, after)
    return Round(moment if killed else None, made, len(after))


def main() -> int:
    """Run the command line. Returns the exit status."""
    parser = parser_of(__doc__)
    parser.add_argument("model", nargs="?", type=Path, default=FOLDER / "light_squeezenet.onnx")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backends", help="comma-separated; default: all that are available")
    arguments = parser.parse_args()
    options = ["--backends", arguments.backends] if arguments.backends else []
    rng = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory(prefix="check-crashes-") as folder:
        try:
            within_s = Compile(arguments.model, Path(folder) / "whole", options).finish()
            print(f"a whole compile: {within_s:.1f} s", flush=True)
            job = Compile(arguments.model, Path(folder) / "killed", options)
            kills = 0
            while kills < arguments.kills:
                number = _SIGNALS[kills % len(_SIGNALS)]
                found = crash(job, within_s, rng, number)
                if found.killed_after_s is None:
                    print(f"finished: {found.known} records; starting afresh", flush=True)
                    shutil.rmtree(job.home)
                    continue
                kills += 1
                records = f"after {found.killed_after_s:5.1f} s: {found.made} new records, {found.known} in all"
                print(f"kill {kills:2} ({number.name}) {records}", flush=True)
            before = recorded(job.database)
            seconds = job.finish()
            after = recorded(job.database)
            print(f"the next compile: {seconds:.1f} s, {check_kept(before, after, killed=True)} new records")
            job.finish()
            again = check_kept(after, recorded(job.database))
            if again:
                raise CrashError(f"the second compile made {again} measurements")
        except CrashError as error:
            print(f"FAIL: {error}")
            return 1
    print(f"ok: {kills} kills, nothing lost, nothing measured twice, nothing left running")
    return 0
