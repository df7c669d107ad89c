"""ONNX's own backend tests, a fixed eightieth of them: Collage passes each that ONNX Runtime or OpenVINO passes."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.lib.case_pool import Child
from scripts.lib.conformance.suite import CHILD, Results, run_suite

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
