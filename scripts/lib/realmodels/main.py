"""Compile the ONNX files inside silero-vad, rapidocr-onnxruntime and magika, and compare with ONNX Runtime.

    scripts/check_real_models                       in the packages that are installed
    scripts/check_real_models wheels model.onnx     in files, folders and wheels (pip download --no-deps)
    scripts/check_real_models wheels --quick --only silero

Each model gets real inputs: text rendered to pictures for the detector, classifier and recogniser of characters,
generated sound for the voice-activity detectors (window after window, carrying the state on), and files of this
repository for magika. Every output may be as far from ONNX Runtime's as Collage's own checks allow, beside what that
is off from itself without its optimisations; float64 arithmetic judges what is off by more. What is decided by an
output (a label, a character, speech or not) has to be the same. Nothing is downloaded. A table goes to stdout,
progress to stderr. Exit status: 0, 1 (a model does not compile, or disagrees) or 2 (usage).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import onnx

from scripts.lib.realmodels.cases import UnknownModelError, cases_of
from scripts.lib.realmodels.check import Result, check
from scripts.lib.realmodels.files import NoModelsError, find_models


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parse(arguments)
    options = {
        "db": given.db,
        "quick": given.quick,
        "threads": given.threads,
        "backends": given.backends.split(",") if given.backends else None,
        "progress": False,
    }
    results: list[Result] = []
    try:
        for each in find_models(given.models, given.only):
            model = onnx.load_model_from_string(each.data)
            try:
                cases = cases_of(each.name, model)
            except UnknownModelError as error:
                results.append(Result(each.name, "", problem=str(error)))
                continue
            for case in cases[: given.sizes]:
                results.append(check(each.name, model, case, options))
                _say(_row(results[-1]))
    except NoModelsError as error:
        _say(f"error: {error}")
        return 2
    print(_table(results))
    return 0 if all(each.right for each in results) else 1


def _table(results: Sequence[Result]) -> str:
    head = "| model | shapes | backends | runs | error | ONNX Runtime's own | same decisions | compile | |"
    rule = "|---|---|---|---|---|---|---|---|---|"
    return "\n".join([head, rule, *map(_row, results)])


def _row(each: Result) -> str:
    verdict = "ok" if each.right else f"**{each.problem[:300]}**"
    return (
        f"| {each.name} | {each.shapes} | {each.mix} | {each.runs} | {each.error:.1e} | {each.noise:.1e} "
        f"| {each.equal:.2%} | {each.compile_s:.1f} s | {verdict} |"
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    summary, _, rest = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", type=Path, metavar="PATH", help="ONNX files, folders, wheels")
    parser.add_argument(
        "--only", action="append", default=[], metavar="PART", help="models with this in the name"
    )
    parser.add_argument("--quick", action="store_true", help="compile with few candidates")
    parser.add_argument(
        "--sizes", type=int, metavar="N", help="at most so many sets of shapes a model (default: all)"
    )
    parser.add_argument("--db", help="measurement database (default: in the user's cache folder)")
    parser.add_argument("--threads", type=int, metavar="N")
    parser.add_argument("--backends", metavar="A,B", help="default: all that are available")
    found = parser.parse_args(arguments)
    missing = [str(path) for path in found.models if not path.exists()]
    if missing:
        parser.error(f"no such file or folder: {', '.join(missing)}")
    return found
