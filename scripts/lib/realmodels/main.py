"""Compile the ONNX files inside silero-vad, rapidocr-onnxruntime and magika, and compare with ONNX Runtime.

    scripts/check_real_models                       in the packages that are installed
    scripts/check_real_models wheels model.onnx     in files, folders and wheels (pip download --no-deps)
    scripts/check_real_models wheels --quick --only silero

Each model gets real inputs: text rendered to pictures for the detector, classifier and recogniser of characters,
generated speech for the voice-activity detectors (window after window, carrying the state on), and files of this
repository for magika. Every output may be as far from ONNX Runtime's as Collage's own checks allow, beside what that
is off from itself without its optimisations; float64 arithmetic judges what is off by more. Nothing is downloaded.
A table goes to stdout, progress to stderr. Exit status: 0, 1 (a model does not compile, or disagrees) or 2 (usage).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import onnx

from scripts.lib import parser_of
from scripts.lib.realmodels.cases import Kind, UnknownModelError, cases_of, kind_of
from scripts.lib.realmodels.check import Result, check
from scripts.lib.realmodels.files import NoModelsError, networks

_RUNS, _WINDOWS = 10, 100


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit status."""
    given = _parse(arguments)
    backends = given.backends.split(",") if given.backends else None
    options = {"db": given.db, "quick": given.quick, "backends": backends, "progress": False}
    results: list[Result] = []
    try:
        for name, data in networks(given.models, given.only).items():
            model = onnx.load_model_from_string(data)
            try:
                count = _WINDOWS if kind_of(model) is Kind.HEARS else _RUNS
            except UnknownModelError as error:
                results.append(Result(name, "", problem=str(error)))
                continue
            for case in cases_of(name, model, count)[: given.sizes]:
                results.append(check(name, model, case, options))
                print(_row(results[-1]), file=sys.stderr, flush=True)
    except NoModelsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    head = "| model | shapes | backends | runs | error | ONNX Runtime's own | compile | |"
    print("\n".join([head, "|---" * 8 + "|", *map(_row, results)]))
    return int(any(each.problem for each in results))


def _row(each: Result) -> str:
    verdict = f"**{each.problem[:300]}**" if each.problem else "ok"
    return (
        f"| {each.name} | {each.shapes} | {each.mix} | {each.runs} | {each.error:.1e} | {each.noise:.1e} "
        f"| {each.compile_s:.1f} s | {verdict} |"
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("models", nargs="*", type=Path, metavar="PATH", help="ONNX files, folders, wheels")
    parser.add_argument("--only", action="append", default=[], metavar="PART", help="of these names")
    parser.add_argument("--quick", action="store_true", help="compile with few candidates")
    parser.add_argument("--sizes", type=int, metavar="N", help="most sets of shapes a model (default: all)")
    parser.add_argument("--db", help="measurement database (default: in the user's cache folder)")
    parser.add_argument("--backends", metavar="A,B", help="default: all that are available")
    found = parser.parse_args(arguments)
    missing = [str(path) for path in found.models if not path.exists()]
    if missing:
        parser.error(f"no such file or folder: {', '.join(missing)}")
    return found
