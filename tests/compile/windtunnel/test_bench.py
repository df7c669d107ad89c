"""``scripts/bench windtunnel`` on made-up rows: cells are kept, chosen by validation, compared with sources."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("sklearn")
pytest.importorskip("torch")
pytest.importorskip("lightgbm")
pytest.importorskip("pandas")

import pandas as pd

from scripts.lib.bench import windtunnel, windtunnel_data, windtunnel_models
from scripts.lib.bench.windtunnel_data import Data
from scripts.lib.bench.windtunnel_models import Task, Trained


def _made(_: Path) -> Data:
    draws = np.random.default_rng(0)
    kinds, number = draws.integers(0, 20, 3000), draws.normal(size=3000)
    truth = (number + np.sin(kinds) + draws.normal(size=3000) > 0).astype(np.int64)
    frame = pd.DataFrame({"kind": [f"k{each}" for each in kinds], "hour": kinds % 5, "number": number})
    frame.loc[::9, "number"] = np.nan
    days = np.arange(3000) % 60
    return Data(frame, truth, days, ("kind", "hour"), ("number",), days // 5 + 1, 256, 2)


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    windtunnel._load.cache_clear()
    monkeypatch.setattr(windtunnel_data, "DATA", dict.fromkeys(("flights", "adult"), _made))
    monkeypatch.setattr(windtunnel_models, "_TREES", 5)


def _run(folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    file = folder / "found.json"
    given = ["--folder", str(folder), "--threads", "1", "--json", str(file), *arguments]
    done = CliRunner().invoke(windtunnel.command, given)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, json.loads(file.read_text())


def test_each_cell_comes_after_its_source() -> None:
    cells = windtunnel.plan(3)
    assert len({each.name for each in cells}) == len(cells)
    for number, each in enumerate(cells):
        assert each.source in cells[: number + 1]


def test_sources_are_chosen_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, found = _run(
        tmp_path,
        "--only",
        ",".join([*(f"flights time pre3 pipe{number} source" for number in (1, 2, 3)), "flights time lightgbm"]),
        "--seeds",
        "2",
    )
    assert code == 0, found["failed"]
    assert len([name for name in found["cells"] if "pre3" in name and "source" in name]) == 6
    first, second = (found["cells"][f"flights time pre3 pipe2 source all rows seed {seed}"] for seed in range(2))
    assert len(first["tried"]) == 3 and len(second["tried"]) == 1 and second["setting"] == first["setting"]
    assert first["setting"] == max(first["tried"], key=lambda each: each["validation_auc"])["setting"]
    assert first["rows"] == {"train": 2000, "validation": 500, "test": 500}
    _, found_of_days = _run(tmp_path, "--only", "flights days pre1 pipe1 source", "--seeds", "2")
    assert [len(each["tried"]) for name, each in found_of_days["cells"].items() if " days " in name] == [3, 3]
    reference = found["cells"]["flights time lightgbm all rows seed 0"]
    low, mean, high = (reference["difference"]["auc"][key] for key in ("low", "mean", "high"))
    assert low <= mean <= high
    source = found["cells"]["flights time pre2 pipe2 source all rows seed 0"]
    assert mean == pytest.approx(reference["auc"]["test"] - source["auc"]["test"], abs=1e-4)

    def fail(*_: Any) -> list[Trained]:
        raise AssertionError("a finished cell is not computed again")

    monkeypatch.setattr(windtunnel_models, "train_source", fail)
    monkeypatch.setattr(windtunnel_models, "train_reference", fail)
    assert _run(tmp_path, "--only", "flights time lightgbm", "--seeds", "2")[0] == 0


def test_an_interrupt_keeps_finished_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = windtunnel_models.train_source

    def stop(task: Task, pre: str, pipe: str, settings: Sequence[Any]) -> list[Trained]:
        if pipe == "pipe2":
            raise KeyboardInterrupt
        return inner(task, pre, pipe, settings)

    monkeypatch.setattr(windtunnel_models, "train_source", stop)
    code, found = _run(
        tmp_path, "--only", "flights time pre1 pipe1 source,flights time pre1 pipe2 source", "--seeds", "1"
    )
    assert code == 130 and [*found["cells"]] == ["flights time pre1 pipe1 source all rows seed 0"]


def test_whole_networks_are_compared_with_their_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def tune(task: Task, pipeline: Any, variant: str, setting: Any) -> Trained:
        def predict(rows: Any) -> Any:  # the source, and some of the truth
            chances = pipeline.predict_proba(task.frame(rows))[:, 1]
            return chances + setting["rate"] * 100 * task.data.labels[rows]

        return Trained(setting, predict, task.validated(predict), 1.0, 7, "validation")

    monkeypatch.setattr(windtunnel_models, "tune", tune)
    _, found = _run(
        tmp_path, "--only", "flights days pre2 pipe2 source all,flights days pre2 pipe2 whole", "--seeds", "2"
    )
    whole = next(each for each in found["summary"] if each["variant"] == "whole")
    assert whole["seeds"] == 2 and whole["difference"]["auc"]["low"] > 0 and whole["epochs"] == [7, 7]
    cell = found["cells"]["flights days pre2 pipe2 whole all rows seed 1"]
    assert cell["setting"] == {"rate": 1e-3}
    assert [each["tau"] for each in cell["starts"]] == [0.1] and cell["starts"][0]["correlation"] >= 0.98
    assert whole["auc"] - whole["source_auc"] == pytest.approx(whole["difference"]["auc"]["mean"], abs=1e-4)
    assert any("better in 1 and worse in 0 of 1 cells" in line for line in found["verdict"])
