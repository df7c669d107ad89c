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
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from collage.kernel.target import usable_cores
from scripts.lib import INTERRUPTED, parser_of
from scripts.lib.case_pool import Child, Outcome, run_all
from scripts.lib.fuzzing.change_model import change_model, originals
from scripts.lib.fuzzing.change_module import change_module
from scripts.lib.fuzzing.child import ERROR, OK, Case, Start
from scripts.lib.fuzzing.corpus import write_corpus


@dataclass(frozen=True)
class Changed:
    """A changed file: its number (the seed that made it), what was changed, and its bytes."""

    number: int
    what: str
    data: bytes
    suffix: str


def changed_modules(folder: Path, count: int, first: int = 0, seed: int = 0) -> Iterator[Changed]:
    """Make changed module files. The good ones are written to ``folder``."""
    good = [(path.stem, path.read_bytes()) for path in write_corpus(folder)] if count else []
    for number in range(first, first + count):
        name, data = good[number % len(good)]
        changed, what = change_module(data, random.Random(f"module {seed} {number}"))
        yield Changed(number, f"{name}: {what}", changed, ".collage")


def changed_models(count: int, first: int = 0, seed: int = 0) -> Iterator[Changed]:
    """Make changed ONNX files."""
    good = originals() if count else []
    for number in range(first, first + count):
        rng = random.Random(f"model {seed} {number}")
        name, data = good[rng.randrange(len(good))]
        changed, what = change_model(data, rng)
        yield Changed(number, f"{name}: {what}", changed, ".onnx")


def run_cases(
    start: Start,
    cases: Iterable[Changed],
    folder: Path,
    jobs: int,
    limit_s: float,
    take: Callable[[Changed, Outcome], None],
) -> None:
    """Give the outcome of each case to ``take``. Files of cases that are not clean are kept in ``folder``."""

    def run(child: Child, case: Changed) -> Outcome:
        path = folder / f"{case.number:05d}{case.suffix}"
        path.write_bytes(case.data)
        outcome = child.ask(Case(str(path), case.number))
        if outcome.status in (OK, ERROR):
            path.unlink()
        return outcome

    children = [Child("scripts.lib.fuzzing.child", start, limit_s) for _ in range(jobs)]
    run_all(children, cases, run, take)


def main() -> int:
    """Run the command line. Returns the exit status."""
    parser = parser_of(__doc__)
    parser.add_argument("--modules", type=int, default=1000, metavar="N")
    parser.add_argument("--models", type=int, default=1000, metavar="N")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="number of the first file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backends", default="", help="for ONNX files, with commas; default: all that are there")
    parser.add_argument("--limit", type=float, default=120.0, metavar="S", help="seconds a file may take")
    parser.add_argument("--jobs", type=int, default=usable_cores(), help="children at once")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-found"), help="folder for files that are faults")
    arguments = parser.parse_args()
    backends = tuple(filter(None, arguments.backends.split(",")))
    numbers = arguments.first, arguments.seed
    arguments.keep.mkdir(parents=True, exist_ok=True)
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
    """Run the cases and print their outcomes. Returns the number of faults."""
    began = time.monotonic()
    counts: Counter[str] = Counter()

    def take(case: Changed, outcome: Outcome) -> None:
        counts[outcome.status] += 1
        if outcome.status not in (OK, ERROR):
            name = f"{case.number}{case.suffix} {outcome.status} ({case.what})"
            print(f"{name}: {outcome.message}", file=sys.stderr, flush=True)

    run_cases(start, cases, arguments.keep, arguments.jobs, arguments.limit, take)
    if counts:
        listing = ", ".join(f"{count} {status}" for status, count in counts.most_common())
        seconds = time.monotonic() - began
        print(f"{counts.total()} changed {what} in {seconds:.0f} s: {listing}", flush=True)
    return counts.total() - counts[OK] - counts[ERROR]
