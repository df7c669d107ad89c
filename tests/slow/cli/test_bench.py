"""``collage bench``: the contract, and engines that are unknown or fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from collage.backends.base import Availability
from collage.bench.race import verdict
from collage.module.module import CompiledModule
from tests.helpers.cli.helpers import collage, fails, json_of, succeeds
from tests.helpers.models import make_model


def test_json_is_the_contract(network: Path, module: Path) -> None:
    found = json_of("bench", network, "--module", module, "--rounds", "1", "--json")
    assert (found["model"], found["rounds"]) == ("net.onnx", 1)
    assert {"collage", "onnxruntime"} <= set(found["engines"])
    for timing in found["engines"].values():
        assert 0 < timing["min_us"] <= timing["median_us"] <= timing["p90_us"]
        assert timing["max_relative_error"] < 1e-4
    others = [timing["median_us"] for name, timing in found["engines"].items() if name != "collage"]
    ratio = min(others) / found["engines"]["collage"]["median_us"]
    assert found["speedup_vs_best_engine"] == pytest.approx(ratio, rel=1e-3, abs=6e-5)
    ratios = found["ratios"][found["best_engine"]]
    assert ratios["low"] <= ratios["median"] <= ratios["high"]
    assert found["verdict"] == verdict(ratios["low"], ratios["high"])
    assert found["within_noise"] == (found["verdict"] == "as fast")


def test_the_shapes_of_the_module_are_taken(tmp_path: Path, database: Path) -> None:
    inputs: dict[str, list[Any]] = {"x": ["n", 8], "z": [1, 8], "s": []}
    nodes = [helper.make_node("Sum", [*inputs], ["y"])]
    model, out = tmp_path / "symbolic.onnx", tmp_path / "out.collage"
    onnx.save_model(make_model(nodes, inputs, {"y": ["n", 8]}), str(model))
    options = ("--db", database, "--backends", "onnxruntime", "--quiet")
    bench = ("bench", model, "--module", out, "--rounds", "1")
    succeeds("compile", model, "-o", out, *options, "--shape", "x:4x8")
    found = json_of(*bench, "--json")
    assert (found["shapes"], found["shapes_of"]) == ({"x": [4, 8]}, str(out))
    assert json_of(*bench, "--shape", "x:4x8", "--json")["shapes_of"] is None
    fails(2, *bench, "--shape", "x:5x8", words=("is no module of",))
    succeeds("compile", model, "-o", out, *options, "--shape", "x:2x8", "--shape", "x:4x8")
    assert f"inputs x:2x8, as in the first of 2 sets in {out}" in succeeds(*bench)
    onnx.save_model(make_model(nodes, inputs | {"x": ["n", 8, 1]}, {"y": ["n", 8, 8]}), str(model))
    fails(1, *bench, words=("was not compiled for x:1x8x1",))


def test_unknown_engines_are_named_at_once(network: Path) -> None:
    fails(
        2,
        "bench",
        network,
        "--engines",
        "rubbish,nonsense",
        words=("nonsense, rubbish", "Valid: onnxruntime, onnxruntime_cuda, openvino, tensorrt, torch_cuda"),
    )


def test_an_engine_that_fails_is_named(tmp_path: Path, database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from collage.bench import engines as bench

    model = make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": [8]}, {"y": [8]})
    path = tmp_path / "net.onnx"
    onnx.save_model(model, str(path))
    original = bench.setup_for

    def misled(setup: bench.Setup, engine: str, module: str) -> bench.Setup:
        return original(setup, engine if engine != "openvino" else "nowhere", module)

    monkeypatch.setattr(bench, "setup_for", misled)
    options = ["--db", str(database), "--rounds", "1"]
    found = json_of("bench", path, *options, "--json")
    assert "KeyError" in found["failed"]["openvino"]
    assert "openvino" not in found["engines"]
    fails(1, "bench", path, *options, "--engines", "openvino", words=("openvino cannot run", "KeyError"))


def test_a_registered_engine_takes_part(network: Path, module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from collage import api
    from collage.backends.registry import builtin_registry
    from collage.bench.engines import Contest, bench
    from tests.helpers.beside import Slow

    class Named(Slow):
        name = "named"

        def available(self) -> Availability:
            return Availability(version="1")

    registry = builtin_registry(with_entry_points=False)
    registry.register(Named())
    monkeypatch.setattr(api, "default_registry", lambda: registry)
    found = bench(network, Contest(engines=["named"], rounds=1), module=module)
    assert set(found["engines"]) == {"collage", "named"}
    assert found["engines"]["named"]["max_relative_error"] < 1e-4
    assert not found["failed"]


def ending(ended: str, budget_s: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let compiles tell that something else has ended them."""
    from collage import api

    compile = api.compile

    def stopped(*arguments: Any, **options: Any) -> CompiledModule:
        made = compile(*arguments, **options)
        made.report = replace(made.report, ended=ended, budget_s=budget_s)
        return made

    monkeypatch.setattr(api, "compile", stopped)


def test_ctrl_c_during_the_compile_ends_the_command(
    network: Path, module: Path, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending("interrupt", None, monkeypatch)
    result = collage("bench", network, "--db", database, "--rounds", "1")
    assert (result.exit_code, result.stdout) == (130, "")
    assert "collage: interrupted; the measurements made so far are kept" in result.stderr


def test_what_has_ended_the_compile_of_a_module_is_told(network: Path, database: Path, tmp_path: Path) -> None:
    stopped = tmp_path / "stopped.collage"
    succeeds("compile", network, "-o", stopped, "--db", tmp_path / "db.sqlite", "--budget", "0.01")
    options = ("--engines", "onnxruntime", "--rounds", "1", "--json")
    found = json_of("bench", network, "--module", stopped, *options)
    assert (found["ended"], found["budget_s"]) == ("budget", 0.01)


def test_a_module_of_another_model_is_refused(network: Path, module: Path, tmp_path: Path) -> None:
    path = tmp_path / "other.onnx"
    for name, shape in (("x", [4, 65]), ("q", [4, 64])):
        model = make_model([helper.make_node("Relu", [name], ["y"])], {name: shape}, {"y": shape})
        onnx.save_model(model, str(path))
        text = "x".join(map(str, shape))
        words = (
            "is no module of",
            "it takes x:4x64 and gives y",
            f"the model takes {name}:{text} and gives y",
        )
        fails(2, "bench", path, "--module", module, words=words)


def test_the_budget_is_that_of_the_compile(network: Path, tmp_path: Path) -> None:
    options = ("--engines", "onnxruntime", "--rounds", "1", "--json", "--db", tmp_path / "db.sqlite")
    assert json_of("bench", network, "--budget", "8", *options)["budget_s"] == 8.0
    assert json_of("bench", network, "--quick", *options)["budget_s"] == 10.0


@pytest.mark.parametrize("option", [("--budget", "8"), ("--quick",), ("--db", "db.sqlite")])
def test_what_is_of_no_use_with_a_module(option: tuple[str, ...], network: Path, module: Path) -> None:
    fails(2, "bench", network, "--module", module, *option, words=(f"{option[0]} is of no use with --module",))


def test_outputs_that_are_drawn_are_not_compared(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Dropout", ["x", "half", "yes"], ["d"]),
        helper.make_node("Tanh", ["d"], ["y"]),
        helper.make_node("Relu", ["x"], ["z"]),
    ]
    weights = {"half": np.array(0.5, np.float32), "yes": np.array(True)}
    model = make_model(nodes, {"x": [8, 64]}, {"y": [8, 64], "z": [8, 64]}, weights)
    onnx.save_model(model, str(tmp_path / "net.onnx"))
    options = ("--quick", "--rounds", "1", "--db", tmp_path / "db", "--engines", "onnxruntime", "--json")
    found = json_of("bench", tmp_path / "net.onnx", *options)
    assert all(each["max_relative_error"] < 1e-5 for each in found["engines"].values())
