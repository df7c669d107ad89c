"""``collage bench``: the contract, and engines that are unknown or fail."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import helper

from collage.backends.base import Availability
from tests.cli.helpers import fails, json_of, succeeds
from tests.models import make_model


def test_json_is_the_contract(network: Path, module: Path) -> None:
    found = json_of("bench", network, "--module", module, "--rounds", "1", "--json")
    assert (found["model"], found["rounds"]) == ("net.onnx", 1)
    assert {"collage", "onnxruntime"} <= set(found["engines"])
    for timing in found["engines"].values():
        assert 0 < timing["min_us"] <= timing["median_us"] <= timing["p90_us"]
        assert timing["max_relative_error"] < 1e-4
    others = [timing["median_us"] for name, timing in found["engines"].items() if name != "collage"]
    ratio = min(others) / found["engines"]["collage"]["median_us"]
    assert found["speedup_vs_best_engine"] == pytest.approx(ratio, rel=1e-3)


def test_compiles_when_no_module_is_given(network: Path, database: Path, module: Path) -> None:
    text = succeeds("bench", network, "--engines", "onnxruntime", "--db", database, "--rounds", "1")
    for word in ("onnxruntime", "collage", "median", "as fast as"):
        assert word in text
    assert "openvino" not in text


def test_symbolic_shapes(tmp_path: Path, database: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    path = tmp_path / "symbolic.onnx"
    onnx.save_model(make_model(nodes, {"x": ["n", 8]}, {"y": ["n", 8]}), str(path))
    fails(2, "bench", path, words=("--shape x:1x8",))
    flags = ["--shape", "x:4x8", "--db", str(database), "--rounds", "1", "--json"]
    assert len(json_of("bench", path, *flags)["engines"]) >= 2


def test_unknown_engines_are_named_at_once(network: Path) -> None:
    fails(
        2,
        "bench",
        network,
        "--engines",
        "rubbish,nonsense",
        words=("nonsense, rubbish", "Valid: onnxruntime, onnxruntime_cuda, openvino, tensorrt, torch_cuda"),
    )


def test_bad_files(network: Path, module: Path, tmp_path: Path) -> None:
    fails(1, "bench", tmp_path / "no.onnx", words=("no.onnx",))
    fails(1, "bench", network, "--module", tmp_path / "no.collage", words=("no.collage",))
    fails(2, "bench", network, "--module", module, "--threads", "61", words=("61", "--threads"))
    fails(2, "bench", network, "--rounds", "0", words=("--rounds",))


def test_an_engine_that_fails_is_named(
    tmp_path: Path, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from collage.bench import engines as bench

    model = make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": [8]}, {"y": [8]})
    path = tmp_path / "net.onnx"
    onnx.save_model(model, str(path))
    original = bench._for

    def misled(setup: bench.Setup, engine: str, module: str) -> bench.Setup:
        return original(setup, engine if engine != "openvino" else "nowhere", module)

    monkeypatch.setattr(bench, "_for", misled)
    options = ["--db", str(database), "--rounds", "1"]
    found = json_of("bench", path, *options, "--json")
    assert "KeyError" in found["failed"]["openvino"]
    assert "openvino" not in found["engines"]
    fails(1, "bench", path, *options, "--engines", "openvino", words=("openvino cannot run", "KeyError"))


def test_a_registered_engine_takes_part(network: Path, module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from collage import api
    from collage.backends.registry import builtin_registry
    from collage.bench.engines import Contest, bench
    from tests.beside import Slow

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
