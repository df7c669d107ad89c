"""`scripts/bench anytime`: compiles of a tiny network, and a race between what came of them."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import onnx
import pytest
from rich.console import Console

from collage.bench.compiled import Options
from collage.errors import UsageError
from scripts.lib.studies import tables
from scripts.lib.studies.anytime import EXHAUSTIVE, QUICK, SECOND, UNLIMITED, anytime
from scripts.lib.studies.anytime_picture import draw, shares_of_course
from scripts.lib.studies.one_by_one import PROBLEM, kept_results
from tests.models import elementwise_net


def test_ways_to_compile_are_compared(tmp_path: Path) -> None:
    model = tmp_path / "net.onnx"
    onnx.save_model(elementwise_net(), str(model))
    options = Options(threads=1, rounds=3)
    result = anytime(model, lambda _: None, options=options, budgets=(30.0,), exhaustive=True)
    assert list(result["compiles"]) == [QUICK, "30 s", UNLIMITED, SECOND, EXHAUSTIVE]
    assert result["compiles"].pop(SECOND)["measurements"] == 0
    assert all(each["measurements"] > 0 and each["course"] for each in result["compiles"].values())
    assert 0 < result["first_module_s"] < result["compiles"][UNLIMITED]["compile_s"]
    assert 0 < result["engine_load_s"] < 60
    assert result["share_of_best"][EXHAUSTIVE] == 1.0 and not result["failed"]
    assert all(ratio > 0 for ratio in result["over_best_engine"].values())
    console = Console(width=200, record=True, file=StringIO())
    for part in tables.anytime([result]):
        console.print(part)
    text = console.export_text()
    assert all(word in text for word in (QUICK, "30 s", UNLIMITED, EXHAUSTIVE, "100.0%", "finished"))
    draw([result], tmp_path / "curve.svg")
    assert "<svg" in (tmp_path / "curve.svg").read_text()


def test_shares_of_a_course_are_those_of_the_last_race() -> None:
    result = {
        "compiles": {
            UNLIMITED: {
                "course": [
                    [2, 5.0, "swift, as written"],
                    [9, 2.5, "collage"],
                    [11, 1.9, "mix 2"],
                    [12, 2.0, "concurrent"],
                ]
            }
        },
        "share_of_best": {UNLIMITED: 0.9, EXHAUSTIVE: 1.0},
        "contenders": {"swift": {"median_us": 4000.0}, EXHAUSTIVE: {"median_us": 2000.0}},
    }
    assert dict(shares_of_course(result)) == pytest.approx({2: 0.5, 9: 0.72, 11: 0.9, 12: 0.9})


def test_results_of_earlier_runs_are_read_again(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    rows = [{"model": "a", "n": 1}, {"model": "b", PROBLEM: "no disk"}, {"model": "a", "n": 2}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert kept_results(file) == [{"model": "a", "n": 2}]
    file.write_text("no JSON")
    with pytest.raises(UsageError, match=r"results\.jsonl has no results"):
        kept_results(file)
