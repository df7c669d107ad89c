"""ONNX's own backend tests, a fixed eightieth of them: Collage passes each that ONNX Runtime or OpenVINO passes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest

from scripts.lib.conformance.suite import Result, Results, Runner, Shard, run_all, select

EIGHTIETH = Shard(1, 80)
ENGINES = ("onnxruntime", "openvino")
BY_A_HAIR = re.compile(r"Node/test_attention_.*fp16")
"""They allow one unit in the last place of a half: which kernel happened to be the fastest decides."""


def test_an_eightieth_of_the_suite() -> None:
    mine = Results()
    run_all("collage", lambda tests: select(tests, EIGHTIETH), mine, 120.0, 2, lambda *_: None)
    results = mine.of("collage")
    assert len(results) > 15
    missed = [result for result in results.values() if not result.passed]
    assert not [result for result in missed if result.status in ("crashed", "hung")]
    # The engines run only what Collage misses, and must miss it, too.
    for engine in ENGINES:
        theirs = Results()
        run_all(engine, lambda _: [result.test for result in missed], theirs, 60.0, 1, lambda *_: None)
        passed = [test for test, result in theirs.of(engine).items() if result.passed]
        assert all(BY_A_HAIR.match(test) for test in passed), passed


@pytest.fixture
def runner() -> Iterator[Runner]:
    found = Runner("onnxruntime", 60.0)
    yield found
    found.close()


def test_one_test_in_a_child(runner: Runner) -> None:
    names = runner.tests()
    assert len(names) > 1500
    assert runner.run("Node/test_relu").passed
    failed = runner.run("Node/test_image_decoder_decode_png_rgb")
    assert (failed.status, failed.backend) == ("error", "onnxruntime")
    assert "ImageDecoder" in failed.message


class Crashing(Runner):
    """The backend's child dies in the middle of a test."""

    def run(self, test: str) -> Result:
        self.tests()
        assert self._child is not None
        os.kill(self._child._process.pid, 9)
        return super().run(test)


def test_a_crash_costs_one_test() -> None:
    runner = Crashing("onnxruntime", 60.0)
    try:
        assert runner.run("Node/test_relu").status == "crashed"
        assert Runner.run(runner, "Node/test_relu").passed
    finally:
        runner.close()


def test_a_hang_costs_one_test() -> None:
    runner = Runner("onnxruntime", 1e-6)
    try:
        assert runner.run("Node/test_relu").status == "hung"
    finally:
        runner.close()
