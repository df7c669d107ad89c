"""ONNX's own backend tests, a fixed eightieth of them: Collage passes each that ONNX Runtime or OpenVINO passes."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.lib.conformance import main as suite
from scripts.lib.conformance.suite import Result, Results, Runner, Shard, run_all, select
from scripts.lib.conformance.tables import differences, markdown, summary

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


def test_shards_are_a_partition_that_other_tests_do_not_change() -> None:
    names = [f"Node/test_{number}" for number in range(1000)]
    shards = [select(names, Shard(number, 3)) for number in (1, 2, 3)]
    assert sorted(name for shard in shards for name in shard) == sorted(names)
    assert all(250 < len(shard) < 420 for shard in shards)
    assert select(names[:500], Shard(2, 3)) == [name for name in shards[1] if name in set(names[:500])]


def test_results_are_kept_and_compared(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    first = Results(path)
    first.add(Result("collage", "Node/a", "passed", "", 0.1))
    first.add(Result("collage", "Node/b", "failed", "other numbers", 0.1))
    first.add(Result("collage", "Simple/c", "hung", "took more than 5 s", 5.0))
    for name in "Node/a", "Node/b", "Simple/c":
        first.add(Result("openvino", name, "passed", "", 0.1))
    found = summary(Results(path), ["collage", "openvino"])
    assert found["tests"] == 3
    assert found["backends"]["collage"]["passed"] == 1
    assert found["backends"]["collage"]["by_category"]["Node"] == [1, 2]
    assert found["backends"]["collage"]["hung"] == ["Simple/c"]
    assert list(found["missed"]["collage"]) == ["Node/b", "Simple/c"]
    assert found["missed"]["openvino"] == {}
    assert "| all (3) | 1 | 3 |" in markdown(found)
    assert "`Node/b` (passed by openvino): other numbers" in differences(found, "collage")
    assert "every test" in differences(found, "openvino")


def test_an_interrupted_suite_has_no_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of a part would look like those of all tests, and a status of 0 like that of a suite without failures."""

    def interrupted(backend: str, choose: object, results: Results, *_: object) -> None:
        results.add(Result(backend, "Node/a", "passed", "", 0.1))
        raise KeyboardInterrupt

    monkeypatch.setattr(suite, "run_all", interrupted)
    monkeypatch.setattr(
        sys, "argv", ["onnx_suite", "--backends", "collage", "--results", str(tmp_path / "r")]
    )
    assert suite.main() == 130
    found = capsys.readouterr()
    assert not found.out and "interrupted" in found.err
    assert len(Results(tmp_path / "r").of("collage")) == 1


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


def test_a_child_leaves_no_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    runner = Runner("collage", 60.0)
    try:
        assert runner.run("Node/test_relu").passed
        assert list(tmp_path.iterdir())
    finally:
        runner.close()
    assert not list(tmp_path.iterdir())
