"""Models that run whole on one engine, through every command."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.helpers.cli.helpers import fails, json_of, succeeds
from tests.helpers.models import positive_rows


@pytest.fixture(scope="module")
def network(folder: Path) -> Path:
    path = folder / "rows.onnx"
    onnx.save_model(positive_rows(), str(path))
    return path


@pytest.fixture(scope="module")
def module(folder: Path, network: Path, database: Path) -> Path:
    path = folder / "rows.collage"
    text = succeeds("compile", network, "-o", path, "--db", database, "--quick", "--quiet")
    assert "runs the model whole" in " ".join(text.split())
    return path


def test_show(module: Path, tmp_path: Path) -> None:
    assert "runs the model whole" in " ".join(succeeds("show", module).split())
    found = json_of("show", module, "--json")
    assert [region["nodes"] for region in found["regions"]] == [["sum", "greater", "compress"]]
    assert "chosen" in succeeds("show", module, "--explain", "compress")
    succeeds("show", module, "--html", tmp_path / "rows.html")
    assert "compress" in (tmp_path / "rows.html").read_text()


def test_run(module: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    succeeds("run", module, "--input", f"x={tmp_path / 'x.npy'}", "--output-dir", tmp_path / "out")
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "y.npy"), x[x.sum(1) > 0])
    assert json_of("run", module, "--random", "--json")["outputs"][0]["name"] == "y"
    fails(2, "run", module, words=("missing input: x (float32[6x4])",))


def test_strict(network: Path, database: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.collage"
    fails(1, "compile", network, "-o", out, "--db", database, "--strict", words=("compress (Compress)",))
    assert not out.exists()


def test_bench(network: Path, module: Path) -> None:
    found = json_of("bench", network, "--module", module, "--rounds", "1", "--json")
    assert {"collage", "onnxruntime"} <= set(found["engines"])
    assert all(timing["max_relative_error"] == 0 for timing in found["engines"].values())
