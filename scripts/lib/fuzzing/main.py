"""Change module files and ONNX files, and load or compile, and run, each of them in a process that may die.

    scripts/fuzz                               a thousand of each (some minutes for the modules, more for the models)
    scripts/fuzz --modules 300 --models 0      some of one kind
    scripts/fuzz --modules 1 --first 417 --keep /tmp/found     one file again, which stays there when it is a fault

A module file is changed in its manifest, in the heads of artifacts and in its arrays, and gets the right checksums and
names again; kernels then run on buffers between pages that nobody may touch. The code in TVM's artifacts and the
models in those of engines are not changed: they are programs, and whoever may change them may do anything. An ONNX
file is changed in its bits or in what they mean, compiled quickly, and run once.

A file must run or end in one clean error. A signal, any other exception or a hang is a fault: the file is kept, and the
exit status is 1. What is drawn depends on the seed alone.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from collage.kernel.target import usable_cores
from scripts.lib.fuzzing.cases import changed_models, changed_modules
from scripts.lib.fuzzing.child import Start
from scripts.lib.fuzzing.pool import Changed, Result, run_all
from scripts.lib.studies.each import INTERRUPTED


def main() -> int:
    """Run the command line. Returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--modules", type=int, default=1000, metavar="N")
    parser.add_argument("--models", type=int, default=1000, metavar="N")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="number of the first file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--backends", default="", help="for ONNX files, with commas; default: all that are there"
    )
    parser.add_argument("--limit", type=float, default=120.0, metavar="S", help="seconds a file may take")
    parser.add_argument("--jobs", type=int, default=usable_cores(), help="children at once")
    parser.add_argument(
        "--keep", type=Path, default=Path("fuzz-found"), help="folder for files that are faults"
    )
    parser.add_argument("--verbose", action="store_true", help="a line for every file")
    arguments = parser.parse_args()
    backends = tuple(filter(None, arguments.backends.split(",")))
    numbers = arguments.first, arguments.seed
    try:
        with tempfile.TemporaryDirectory(prefix="fuzz-corpus-") as folder:
            modules = changed_modules(Path(folder), arguments.modules, *numbers)
            faults = _run(arguments, Start("module"), modules, "module files")
            models = changed_models(arguments.models, *numbers)
            faults += _run(arguments, Start("model", backends), models, "ONNX files")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    return 1 if faults else 0


def _run(arguments: argparse.Namespace, start: Start, cases: Iterable[Changed], what: str) -> int:
    """Run the cases and print their results. Returns the number of faults."""
    began = time.monotonic()
    arguments.keep.mkdir(parents=True, exist_ok=True)
    results = run_all(start, cases, arguments.keep, arguments.jobs, arguments.limit, _tell(arguments.verbose))
    if not results:
        return 0
    counts = Counter(result.status for result in results)
    listing = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    print(f"{len(results)} changed {what} in {time.monotonic() - began:.0f} s: {listing}", flush=True)
    return sum(not result.clean for result in results)


def _tell(verbose: bool) -> Callable[[Result], None]:
    def tell(result: Result) -> None:
        if verbose or not result.clean:
            about = f"{result.changed.number}{result.changed.suffix} {result.status} ({result.changed.what})"
            print(f"{about}: {result.message}", file=sys.stderr, flush=True)

    return tell
