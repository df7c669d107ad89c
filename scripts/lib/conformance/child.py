"""A process that runs tests of ONNX's suite against one backend, one after another, until its pipe closes.

Started by ``scripts.lib.conformance.suite``, never by hand. What a backend does to this process, the suite survives.
"""

from __future__ import annotations

import importlib
import time
import unittest
import warnings

import numpy as np
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

from collage.core.child_process import read_message, take_over_pipes, write_message
from scripts.lib.case_pool import Outcome
from scripts.lib.conformance.suite import BACKENDS, CATEGORIES

# It draws the inputs of its tests: the same ones for every backend. That takes some ten seconds, so a fork server
# imports this module once for all children.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    np.random.seed(0)
    load_model_tests(kind="node")


def main() -> None:
    """Serve one parent: the first message is one of BACKENDS, the others are names of tests, as ``category/test``."""
    source, sink = take_over_pipes()
    warnings.simplefilter("ignore")
    try:
        backend: str = read_message(source)
        module, _, name = BACKENDS[backend].partition(":")
        runner = Runner(getattr(importlib.import_module(module), name), __name__)
        cases = {
            f"{category}/{test.removesuffix('_cpu')}": case(test)
            for category in CATEGORIES
            for case in [runner.test_cases[f"OnnxBackend{category}ModelTest"]]
            for test in unittest.defaultTestLoader.getTestCaseNames(case)
            if test.endswith("_cpu")
        }
        write_message(sink, sorted(cases))
        while True:
            write_message(sink, run(cases[read_message(source)]))
    except (EOFError, BrokenPipeError):
        return


def run(case: unittest.TestCase) -> Outcome:
    """Run one test, which has "passed", has "failed" (other numbers), or is an "error" (it would not run)."""
    result = unittest.TestResult()
    start = time.perf_counter()
    case.run(result)
    seconds = round(time.perf_counter() - start, 3)
    for status, found in (("failed", result.failures), ("error", result.errors), ("error", result.skipped)):
        if found:
            return Outcome(status, _last_line(str(found[0][1])), seconds)
    return Outcome("passed", "", seconds)


def _last_line(trace: str) -> str:
    """The error at the end of a traceback, in one line."""
    lines = trace.strip().splitlines()
    start = max((i for i, line in enumerate(lines) if line and not line.startswith((" ", "Traceback"))), default=0)
    first = next((i for i, line in enumerate(lines) if "Error" in line and not line.startswith(" ")), start)
    return " ".join(" ".join(lines[min(first, start) :]).split())[:600]
