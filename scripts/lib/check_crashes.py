"""Kill compiles at random moments. The database must open afterwards, and the next compile must continue from it.

    scripts/check_crashes                          SqueezeNet, twenty kills (an hour, or less on a quiet machine)
    scripts/check_crashes model.onnx --kills 5     a model of yours

SIGKILL, SIGTERM and SIGHUP take turns. After each: the database opens and is sound, all that was in it before still
is, nothing was measured a second time, no process of the compile lives on, and no temporary file is left: after
SIGKILL when the next one has run, else at once. A compile that ends before its moment comes is followed by one with a
new database. In the end one is left to finish, and the one after that must measure nothing. Exit status: 0, or 1.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import tempfile
from pathlib import Path

from scripts.lib.crashes import Compile, CrashError, check_kept, crash, recorded
from scripts.lib.light_models import FOLDER

_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP)


def main() -> int:
    """Run the command line. Returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
                found = crash(job, within_s, rng, _SIGNALS[kills % len(_SIGNALS)])
                if found.killed_after_s is None:
                    print(f"finished: {found.known} records; starting afresh", flush=True)
                    shutil.rmtree(job.home)
                    continue
                kills += 1
                name, moment = signal.Signals(found.number).name, f"{found.killed_after_s:5.1f} s"
                records = f"{found.made} new records, {found.known} in all"
                print(f"kill {kills:2} ({name}) after {moment}: {records}", flush=True)
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
