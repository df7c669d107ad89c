"""`scripts/bench streams`: the study of stream assignment, and the command itself on a tiny network."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import helper

from scripts.lib.studies.assignment import assignment
from tests.models import elementwise_net, make_model

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench"


def script(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), "streams", *arguments], capture_output=True, text=True, timeout=300
    )


def test_assignment_counts_streams_and_events(tmp_path: Path) -> None:
    """Three functions of one result. One continues in its stream, and two have streams of their own and wait for it."""
    ops = ("Tanh", "Exp", "Abs")
    nodes = [helper.make_node("Relu", ["x"], ["a"]), *(helper.make_node(op, ["a"], [op]) for op in ops)]
    onnx.save(make_model(nodes, {"x": [4, 4]}, {op: [4, 4] for op in ops}), tmp_path / "net.onnx")
    found = assignment(tmp_path / "net.onnx", 3)
    assert (found["model"], found["operators"], found["edges"], found["width"]) == ("net", 4, 3, 3)
    assert found["streams"] == {"opara": 3, "nimble": 3}
    assert found["events"] == {"opara": 2, "nimble": 2}
    assert found["ms"].keys() == {"opara", "nimble"} and min(found["ms"].values()) > 0


def test_table_1_of_a_file(tmp_path: Path) -> None:
    onnx.save(elementwise_net(), tmp_path / "net.onnx")
    done = script(str(tmp_path / "net.onnx"), "--rounds", "3", "--json")
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["assignment"]
    assert found["model"] == "net" and found["operators"] == 4


def test_streams_race_against_one_after_another(tmp_path: Path) -> None:
    onnx.save(elementwise_net(), tmp_path / "net.onnx")
    more = ("--run", "--rounds", "2", "--threads", "2", "--db", str(tmp_path / "db.sqlite"), "--json")
    done = script(str(tmp_path / "net.onnx"), *more)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["streams"]
    assert {"collage", "one after another", "onnxruntime"} <= found["engines"].keys()
    assert found["schedule"] in ("sequential", "list", "nimble", "opara")
    assert all(timing["max_relative_error"] < 1e-5 for timing in found["engines"].values())


@pytest.mark.parametrize("arguments", [("rubbish",), ("--rounds", "0")])
def test_usage(arguments: tuple[str, ...]) -> None:
    done = script(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert arguments[-1] in done.stderr
