"""Results in files are JSON also where numbers are not finite."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from scripts.lib.gpu.fragment import Fragment, write_json
from scripts.lib.json_text import json_text
from scripts.lib.studies.one_by_one import one_by_one


def read(text: str) -> Any:
    """What is in the text, which has none of Python's own words for what is not finite."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_what_is_not_finite_is_null() -> None:
    value = {"a": [math.inf, (1.5, -math.inf)], 2: {"b": np.float64("nan")}, "c": "NaN"}
    assert read(json_text(value)) == {"a": [None, [1.5, None]], "2": {"b": None}, "c": "NaN"}


def test_a_study_writes_json(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    status, found = one_by_one(
        {"a": math.inf, "b": 1.0}, lambda item, _: {"error": item}, lambda _: [], results
    )
    assert (status, found) == (0, [{"error": math.inf}, {"error": 1.0}])
    assert [read(line) for line in results.read_text().splitlines()] == [{"error": None}, {"error": 1.0}]


def test_a_part_of_a_run_on_a_gpu_writes_json(tmp_path: Path) -> None:
    fragment = Fragment(tmp_path / "part.json")
    assert fragment.step("wrong", lambda: {"error": math.inf}) == {"error": math.inf}
    assert read((tmp_path / "part.json").read_text())["wrong"] == {"error": None}
    write_json(tmp_path / "whole.json", {"error": math.nan})
    assert read((tmp_path / "whole.json").read_text()) == {"error": None}
