"""ONNX's own backend tests against Collage, ONNX Runtime and OpenVINO: the same tests, the same harness.

    scripts/onnx_suite                                all tests, all three; prints a table
    scripts/onnx_suite --results suite.jsonl          keeps each result at once; run again, it goes on from there
    scripts/onnx_suite --backends collage --only Node/test_resize --json

Tests run in child processes with a time limit, so one that crashes or hangs costs itself only. The tests are those
of the installed onnx package: nodes, simple models, and models and operators from PyTorch. Results go to stdout,
progress to stderr. Exit status: 0, 1 (Collage misses a test that an engine passes, or crashes or hangs), 2 (usage),
130 (interrupted).
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from collage.errors import CollageError
from collage.kernel.target import usable_cores
from scripts.lib import INTERRUPTED, parser_of, say
from scripts.lib.conformance.suite import BACKENDS, Result, Results, markdown, run_suite, summary


def main() -> int:
    """Run the command line. Returns the exit status."""
    arguments = _parse()
    results = Results(arguments.results)

    def choose(tests: Iterable[str]) -> list[str]:
        return [test for test in tests if re.search(arguments.only, test)]

    try:
        for backend in arguments.backends:
            run_suite(backend, choose, results, arguments.limit, arguments.jobs, _show)
    except KeyboardInterrupt:
        say("interrupted; with --results the next run goes on from here")
        return INTERRUPTED
    except CollageError as error:
        say(f"error: {error}")
        return error.exit_code
    chosen = {key: result for key, result in results.items() if choose([result.test])}
    found = summary(chosen, arguments.backends)
    print(json.dumps(found, indent=1) if arguments.json else markdown(found))
    mine = found["backends"].get("collage")
    return int(mine is not None and bool(mine["missed"] or mine["crashed"] or mine["hung"]))


def _show(result: Result) -> None:
    message = f": {result.message[:120]}" if result.message else ""
    say(f"{result.backend} {result.test} {result.status} {result.seconds:.1f} s{message}")


def _parse() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("--backends", type=_backends, default=list(BACKENDS), metavar="A,B")
    parser.add_argument("--only", default="", metavar="REGEX", help="tests whose category/name matches")
    parser.add_argument("--results", type=Path, metavar="FILE", help="one JSON object a line, appended to")
    parser.add_argument("--limit", type=float, default=120.0, metavar="S", help="seconds a test may take")
    parser.add_argument("--jobs", type=int, default=usable_cores(), help="children at once")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _backends(text: str) -> Sequence[str]:
    names = text.split(",")
    unknown = sorted(set(names) - BACKENDS.keys())
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}. Valid: {', '.join(BACKENDS)}")
    return names
