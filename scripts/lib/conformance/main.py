"""ONNX's own backend tests against Collage, ONNX Runtime and OpenVINO: the same tests, the same harness.

    scripts/onnx_suite                                all tests, all three; prints a table
    scripts/onnx_suite --results suite.jsonl          keeps each result at once; run again, it goes on from there
    scripts/onnx_suite --shard 1/3 --only Node/test_resize
    scripts/onnx_suite --backends collage --json

Tests run in child processes with a time limit, so one that crashes or hangs costs itself only. The tests are those
of the installed onnx package: nodes, simple models, and models and operators from PyTorch. Results go to stdout,
progress to stderr. Exit status: 0, 1 (Collage misses a test that an engine passes, or crashes or hangs), 2 (usage),
130 (interrupted).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from collage.errors import CollageError
from collage.kernel.target import usable_cores
from scripts.lib.conformance.child import BACKENDS
from scripts.lib.conformance.suite import Result, Results, Shard, run_all, select
from scripts.lib.conformance.tables import differences, markdown, summary
from scripts.lib.studies.each import INTERRUPTED


def main() -> int:
    arguments = _parse()
    results = Results(arguments.results)
    try:
        for backend in arguments.backends:
            run_all(
                backend,
                lambda tests: select(tests, arguments.shard, arguments.only),
                results,
                arguments.limit,
                arguments.jobs,
                lambda result, done, total: _say(f"{done}/{total} {_line(result)}"),
            )
    except KeyboardInterrupt:
        _say("interrupted; with --results the next run goes on from here")
        return INTERRUPTED
    except CollageError as error:
        _say(f"error: {error}")
        return error.exit_code
    chosen = Results()
    for backend in arguments.backends:
        for test in select(results.of(backend), arguments.shard, arguments.only):
            chosen.add(results.of(backend)[test])
    found = summary(chosen, arguments.backends)
    if arguments.json:
        print(json.dumps(found, indent=1))
    else:
        print(markdown(found))
        for backend in arguments.backends:
            print(f"\n{differences(found, backend)}")
    mine = found["backends"].get("collage")
    failed = mine is not None and (found["missed"]["collage"] or mine["crashed"] or mine["hung"])
    return 1 if failed else 0


def _line(result: Result) -> str:
    message = f": {result.message[:120]}" if result.message else ""
    return f"{result.backend} {result.test} {result.status} {result.seconds:.1f} s{message}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backends", type=_backends, default=list(BACKENDS), metavar="A,B")
    parser.add_argument("--shard", type=_shard, default=Shard(), metavar="K/N", help="the K-th of N shares")
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


def _shard(text: str) -> Shard:
    number, _, count = text.partition("/")
    if not (number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is no share; write it as 1/3")
    return Shard(int(number), int(count))
