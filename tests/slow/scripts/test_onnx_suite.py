"""ONNX's own backend tests, a fixed eightieth of them: Collage passes each that ONNX Runtime or OpenVINO passes."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.lib.case_pool import Child
from scripts.lib.conformance import main as suite
from scripts.lib.conformance.suite import CHILD, Result, Results, markdown, run_suite, summary

ENGINES = ("onnxruntime", "openvino")
BY_A_HAIR = re.compile(r"Node/test_attention_.*fp16")
"""They allow one unit in the last place of a half: which kernel happened to be the fastest decides."""


def in_the_eightieth(test: str) -> bool:
    """Whether the test is among those: its name alone decides."""
    return int.from_bytes(hashlib.sha256(test.encode()).digest()[:8], "big") % 80 == 0


def test_an_eightieth_of_the_suite() -> None:
    mine = Results()
    run_suite("collage", lambda tests: filter(in_the_eightieth, tests), mine, 120.0, 2)
    assert len(mine) > 15
    missed = [result for result in mine.values() if not result.passed]
    assert not [result for result in missed if result.status in ("crashed", "hung")]
    # The engines run only what Collage misses, and must miss it, too.
    for engine in ENGINES:
        theirs = Results()
        run_suite(engine, lambda _: [result.test for result in missed], theirs, 60.0, 1)
        passed = [result.test for result in theirs.values() if result.passed]
        assert all(BY_A_HAIR.match(test) for test in passed), passed


@pytest.fixture
def child() -> Iterator[Child]:
    found = Child(CHILD, "onnxruntime", 60.0, fork=True)
    yield found
    found.close()


def test_a_crash_costs_one_test(child: Child) -> None:
    assert len(child.start()) > 1500
    failed = child.ask("Node/test_image_decoder_decode_png_rgb")
    assert failed.status == "error" and "ImageDecoder" in failed.message
    assert child._process is not None
    os.kill(child._process._process.pid, 9)
    assert child.ask("Node/test_relu").status == "crashed"
    assert child.ask("Node/test_relu").status == "passed"


def test_a_hang_costs_one_test(child: Child) -> None:
    child.start()
    child._limit_s = 1e-6
    assert child.ask("Node/test_relu").status == "hung"


def test_a_child_leaves_no_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    child = Child(CHILD, "collage", 60.0, fork=True)
    try:
        assert child.ask("Node/test_relu").status == "passed"
        assert list(tmp_path.iterdir())
    finally:
        child.close()
    assert not list(tmp_path.iterdir())


def test_results_are_kept_and_compared(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    first = Results(path)
    first.add(Result("collage", "Node/a", "passed", "", 0.1))
    first.add(Result("collage", "Node/b", "failed", "other numbers", 0.1))
    first.add(Result("collage", "Simple/c", "hung", "took more than 5 s", 5.0))
    for name in "Node/a", "Node/b", "Simple/c":
        first.add(Result("openvino", name, "passed", "", 0.1))
    found = summary(Results(path), ["collage", "openvino"])
    assert found["backends"]["collage"]["hung"] == ["Simple/c"]
    table = markdown(found)
    assert "| Node (2) | 1 | 2 |" in table and "| all (3) | 1 | 3 |" in table
    assert "`Node/b` (passed by openvino): other numbers" in table
    assert "openvino misses 0 tests" in table


def test_an_interrupted_suite_has_no_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of a part would look like those of all tests, and a status of 0 like that of a suite without failures."""

    def interrupted(backend: str, choose: object, results: Results, *_: object) -> None:
        results.add(Result(backend, "Node/a", "passed", "", 0.1))
        raise KeyboardInterrupt

    monkeypatch.setattr(suite, "run_suite", interrupted)
    monkeypatch.setattr(
        sys, "argv", ["onnx_suite", "--backends", "collage", "--results", str(tmp_path / "r")]
    )
    assert suite.main() == 130
    found = capsys.readouterr()
    assert not found.out and "interrupted" in found.err
    assert len(Results(tmp_path / "r")) == 1
