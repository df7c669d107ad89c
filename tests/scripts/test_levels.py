"""The results of `scripts/bench levels`, and the script itself on a tiny network."""

from __future__ import annotations

import json
import subprocess
import sys
from io import StringIO
from pathlib import Path

import onnx
import pytest
from rich.console import Console

from collage.bench.compiled import Options
from collage.errors import UsageError
from scripts.lib.studies import tables
from scripts.lib.studies.levels import GRAPH, OP, levels, speedups, winner
from scripts.lib.studies.levels_picture import check, draw
from tests.models import conv_net

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench"

RESULT = {
    "model": "net.onnx",
    "contenders": {
        name: {"median_us": us} for name, us in {OP: 800.0, GRAPH: 750.0, "openvino": 1000.0}.items()
    },
    "speedup": {"best_engine_over_op": 1.25, "best_engine_over_graph": 1.3333, "op_over_graph": 1.0667},
    "search": {
        "genes": 5,
        "trials": 12,
        "seconds": 30.0,
        "ended": "the budget was used up",
        "history": [[0.0, 1.0], [8.0, 1.05], [21.0, 1.0667]],
    },
    "winner": {"op": "mix", "graph": "graph level"},
    "failed": {"onnxruntime": "no such operator"},
}


def test_ratios_are_those_of_the_medians() -> None:
    medians = {name: each["median_us"] for name, each in RESULT["contenders"].items()}
    assert speedups(medians) == RESULT["speedup"]
    alone = speedups({OP: 2.0, GRAPH: 1.0})
    assert alone == {"best_engine_over_op": None, "best_engine_over_graph": None, "op_over_graph": 2.0}
    assert winner({"a": {"median_us": 2.0}, "b": {"median_us": 1.0}}) == "b"


def test_the_table_has_every_ratio_and_the_steps() -> None:
    console = Console(width=250, record=True, file=StringIO())
    for part in tables.levels([RESULT]):
        console.print(part)
    text = console.export_text()
    for word in (
        "1.250",
        "1.333",
        "1.067",
        "8 s 1.050x",
        "the budget was used up",
        "onnxruntime failed: no such operator",
    ):
        assert word in text


def test_the_picture_has_a_curve_for_each_model(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    code = (
        "import sys, json; sys.path.insert(0, sys.argv[1]); from pathlib import Path\n"
        "from scripts.lib.studies.levels_picture import draw\n"
        "draw(json.loads(sys.argv[2]), Path(sys.argv[3]))"
    )
    file = tmp_path / "levels.svg"
    data = json.dumps([RESULT, {**RESULT, "model": "another.onnx"}])
    subprocess.run([sys.executable, "-c", code, str(SCRIPT.parents[1]), data, str(file)], check=True)
    text = file.read_text()
    assert text.count("#0072b2") and text.count("#e69f00")


def test_a_picture_that_could_not_be_drawn_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.backend_bases", None)
    with pytest.raises(UsageError, match=r"pip install '\.\[plots\]'"):
        check(tmp_path / "levels.svg")
    assert callable(draw)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--picture", "levels.docx"], "should end in one of"),
        (["--picture", "nowhere/levels.svg"], "there is no folder"),
        (["what"], "unknown model: what"),
        (["--rounds", "0"], "x>=1"),
        (["--budget", "-3"], "x>0"),
    ],
)
def test_usage_errors(arguments: list[str], words: str, tmp_path: Path) -> None:
    if "docx" in arguments[-1] or "nowhere" in arguments[-1]:
        pytest.importorskip("matplotlib")
    result = subprocess.run(
        [sys.executable, SCRIPT, "levels", *arguments], capture_output=True, text=True, cwd=tmp_path
    )
    assert result.returncode == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_the_script_on_a_tiny_network(tmp_path: Path) -> None:
    onnx.save_model(conv_net(), str(tmp_path / "net.onnx"))
    command = [
        sys.executable,
        SCRIPT,
        "levels",
        "net.onnx",
        "--db",
        "x.sqlite",
        "--budget",
        "6",
        "--rounds",
        "2",
        "--json",
    ]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    (found,) = json.loads(result.stdout)["models"]
    assert {OP, GRAPH} <= found["contenders"].keys()
    assert found["search"]["trials"] >= 1
    assert found["search"]["history"][0] == [0.0, 1.0]
    medians = {name: each["median_us"] for name, each in found["contenders"].items()}
    assert found["speedup"] == speedups(medians)


def test_a_model_that_runs_whole_is_compared_without_a_search(tmp_path: Path) -> None:
    node = onnx.helper.make_node("NonZero", ["x"], ["y"])
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (4, 4))
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.INT64, (2, "found"))
    graph = onnx.helper.make_graph([node], "whole", [x], [y])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save_model(model, str(tmp_path / "net.onnx"))
    options = Options(threads=1, rounds=1, db=str(tmp_path / "x.sqlite"))
    found = levels(tmp_path / "net.onnx", options, lambda _: None, budget_s=1.0, shapes={})
    assert found["search"]["ended"] == "the model runs whole on one engine"
    assert {OP, GRAPH} <= found["contenders"].keys()
