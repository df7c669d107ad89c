"""`scripts/bench`: its list of commands, its help, its errors, and the commands for single kernels and the search."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from click import Command, Context
from onnx import helper

from collage.backends.native import Native
from collage.backends.onednn import OneDnn
from collage.bench.compiled import Options
from collage.frontend.model import import_model
from collage.frontend.subgraph import Subgraph
from collage.kernel.machine_speeds import WRITTEN_DOWN, Blocking
from collage.native import core_problem
from scripts.lib.bench.main import COMMANDS, main
from scripts.lib.kernels.layers import Layer
from scripts.lib.kernels.plans import planned
from scripts.lib.kernels.turns import Turn, in_turns
from scripts.lib.studies import versions
from tests.models import conv_net, make_model

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
needs_core = pytest.mark.skipif(bool(core_problem()), reason=core_problem())


def bench(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPTS / "bench"), *map(str, arguments)]
    return subprocess.run(command, timeout=300, capture_output=True, text=True)


def commands() -> dict[str, Command]:
    context = Context(main)
    found = {name: main.get_command(context, name) for name in main.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}


def test_each_command_is_a_module_and_its_line_is_that_of_its_help() -> None:
    modules = {path.stem.replace("_", "-") for path in (SCRIPTS / "lib" / "bench").glob("*.py")}
    assert modules == {*COMMANDS, "--init--", "main", "options", "output"}
    for name, command in commands().items():
        assert command.name == name
        assert command.get_short_help_str(200) == COMMANDS[name]
        assert "Examples:\n" in str(command.help) and f"scripts/bench {name}" in str(command.help)


@pytest.mark.parametrize("arguments", [[], *([name] for name in COMMANDS)])
def test_help_imports_no_library(arguments: list[str]) -> None:
    code = (
        "import sys; from scripts.lib.bench.main import main\n"
        "try: main()\n"
        "finally: print([each for each in ('numpy', 'onnx', 'rich', 'tvm') if each in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments, "--help"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0
    assert "Usage:" in done.stdout
    assert done.stderr == "[]\n"


def test_errors_are_one_line() -> None:
    for arguments, words in (
        (("rubbish",), "rubbish"),
        (("cpu", "--busy", "--ablation"), "--ablation and --busy"),
        (("cpu", "rubbish"), "unknown model: rubbish"),
        (("versions",), "--before"),
        (("native-layers", "nothing.onnx"), "nothing.onnx"),
        (("precision-layers", "nothing.onnx"), "nothing.onnx"),
        (("native-experts", "--experts", "2", "--chosen", "3"), "3 of 2 experts"),
        (("serve", "gpt2_124m", "--quick", "--precision", "bfloat16"), "--precision bfloat16"),
    ):
        done = bench(*arguments)
        assert done.returncode in (1, 2), arguments
        assert done.stdout == ""
        assert words in done.stderr
        assert done.stderr.startswith("bench: error: ")
        assert len(done.stderr.splitlines()) == 1


def test_ruff_sees_every_script() -> None:
    """Files without a suffix must be named, and only launchers have none."""
    (listed,) = re.findall(
        r"^extend-include = (\[.*\])$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE
    )
    seen = {Path(each).name for each in json.loads(listed)}
    scripts = [path for path in SCRIPTS.iterdir() if path.is_file() and not path.suffix]
    python = [path for path in scripts if "python" in path.read_text().partition("\n")[0]]
    assert {path.name for path in python} == seen
    for path in python:
        assert os.access(path, os.X_OK)
        assert len(path.read_text().splitlines()) <= 12


def test_turns_alternate() -> None:
    calls: list[str] = []
    runs = {name: lambda name=name: calls.append(name) for name in "ab"}
    found = in_turns(runs, 0.0, Turn(timed=2, untimed=1), rounds=2)
    assert "".join(calls) == "aaabbb" * 2
    assert {name: len(times) for name, times in found.items()} == {"a": 4, "b": 4}


def test_versions_are_compared_round_by_round() -> None:
    found = versions.summary([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert found == {"milliseconds": {"before": 4.0, "now": 2.0}, "before/now": [2.0, 2.0, 2.0]}
    assert versions.summary([3.0], [2.0])["before/now"] == [1.5, 1.5, 1.5]


STUB = """
import time
from pathlib import Path
from types import SimpleNamespace
import numpy as np

class Module:
    report = SimpleNamespace(measured_us=1.0, relative_error=0.0, measurements_made=3, notes=[])
    program = SimpleNamespace(regions=[SimpleNamespace(finite_only=True)])
    inputs = {"x": np.zeros(4, np.float32)}

    def save(self, path):
        Path(path).write_text("a module")

    def bind(self):
        return self

    def __call__(self):
        time.sleep(SECONDS)

def compile(model, *, db, threads, progress):
    time.sleep(0.1)
    return Module()

def load(path):
    assert Path(path).read_text() == "a module"
    return Module()
"""


def test_two_versions_that_are_not_equally_fast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their packages are made up; the processes and their turns are real."""
    for name, seconds in (("before", 0.008), ("now", 0.002)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "collage.py").write_text(STUB.replace("SECONDS", str(seconds)))
    monkeypatch.setattr(versions, "ROOT", tmp_path / "now")
    monkeypatch.setattr(versions, "BURST_S", 0.02)
    options = Options(threads=1, rounds=5)
    found = versions.Comparison(tmp_path / "before")(tmp_path / "net.onnx", options, lambda _: None)
    assert found["model"] == "net"
    assert found["now"]["regions"] == found["now"]["guarded"] == 1
    assert found["before"]["measurements"] == 3
    low, middle, high = found["before/now"]
    assert middle > 1.0 and low <= middle <= high


def test_the_search_against_the_exact_solver() -> None:
    pytest.importorskip("scipy")
    done = bench("search", "1", "--json")
    assert done.returncode == 0, done.stderr
    graphs = json.loads(done.stdout)["graphs"]
    assert [each["horizontal"] for each in graphs] == [False, True]
    for each in graphs:
        assert each["dp_us"] >= each["exact_us"] * (1 - 1e-9)
        assert min(each["dp_s"], each["exact_s"], each["convexity_s"]) > 0


@needs_core
def test_our_kernels_and_those_of_libraries() -> None:
    done = bench("native-kernels", "--only", "mobilenet 576", "--seconds", "0.01", "--threads", "1", "--json")
    assert done.returncode == 0, done.stderr
    (case,) = json.loads(done.stdout)["cases"]
    assert any(name.startswith("native: ") for name in case["us"])
    done = bench("tvm-kernels", "--only", "bias add", "--seconds", "0.01", "--json")
    assert done.returncode == 0, done.stderr
    (kernel,) = json.loads(done.stdout)["kernels"]
    assert kernel["us"].keys() == {"ours", "tvm", "ort"} and max(kernel["max_abs_error"].values()) < 1e-4


@needs_core
@pytest.mark.skipif(not Native().available(), reason=Native().available().reason)
def test_experts_in_each_precision() -> None:
    sizes = ("--experts", "6", "--chosen", "2", "--depth", "50", "--columns", "70", "--tokens", "3")
    done = bench("native-experts", *sizes, "--seconds", "0.01")
    assert done.returncode == 0, done.stderr
    about, _, *rows = done.stdout.splitlines()
    assert about == "2 thread(s), 3 token(s), 2 of 6 matrices of 50 x 70"
    found = {row.split()[0]: [float(each) for each in row.split()[1:5]] for row in rows}
    assert [*found] == ["float32", "bf16", "int8"]
    assert found["float32"][2] == 1 and all(min(each[:3]) > 0 for each in found.values())
    assert found["float32"][3] < 1e-5 < found["bf16"][3] < found["int8"][3] < 5e-2


@needs_core
@pytest.mark.skipif(not OneDnn().available(), reason=OneDnn().available().reason)
def test_the_layers_of_a_model(tmp_path: Path) -> None:
    onnx.save_model(conv_net(), str(tmp_path / "net.onnx"))
    done = bench("native-layers", tmp_path / "net.onnx", "--seconds", "0.01", "--threads", "1", "--cold")
    assert done.returncode == 0, done.stderr
    assert "ratio" in done.stdout and "sum of native: " in done.stdout


@needs_core
@pytest.mark.skipif(not OneDnn().available(), reason=OneDnn().available().reason)
def test_plans_for_this_machine_and_for_the_one_that_is_written_down(tmp_path: Path) -> None:
    onnx.save_model(conv_net(), str(tmp_path / "net.onnx"))
    done = bench("constants", tmp_path / "net.onnx", "--seconds", "0.01", "--hot", "--all", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["speeds"]["measured"] and found["threads"] == 2
    (model,) = found["models"]
    assert model["same_plan"] == 0 and model["layers"]
    for layer in model["layers"]:
        assert layer["flop"] > 0 and min(layer["us"].values()) > 0
        assert layer["differ"] or layer["ratio"] == 1.0  # a kernel of both plans is run once
    assert model["share_of_peak"].keys() == model["ms"].keys() == {"written", "measured"}


@needs_core
def test_layers_whose_plans_differ() -> None:
    speeds = {"written": WRITTEN_DOWN, "other": replace(WRITTEN_DOWN, blocking=Blocking(gemm_depth=64))}
    weights = np.ones((512, 64), np.float32)
    proto = make_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": [16, 512]}, {"y": [16, 64]}, {"w": weights}
    )
    layer = Layer("product", Subgraph(import_model(proto), (0,)), 1, weights.nbytes)
    found = planned(layer, speeds, 2)
    assert found.differ and found.flop == 2 * 16 * 512 * 64
    only = found.kernels["other"] - found.kernels["written"]
    assert only and all(made.name.startswith("native: ") for made in only)
    us = found.race(0.0, cold=True)
    assert us.keys() == found.kernels["written"] | found.kernels["other"] and min(us.values()) > 0
    assert not planned(layer, dict.fromkeys(speeds, WRITTEN_DOWN), 2).differ
