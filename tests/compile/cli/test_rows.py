"""Models of tables through the command line: no flag is needed for their rows, and libraries' files are models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.helpers.cli.helpers import fails, json_of, succeeds
from tests.helpers.models import elementwise_net
from tests.helpers.tables import COLUMNS, rows, trees

QUICK = "--quick", "--quiet", "--backends", "onnxruntime"


@pytest.fixture(scope="module")
def table(folder: Path) -> Path:
    path = folder / "trees.onnx"
    onnx.save_model(trees(), str(path))
    return path


@pytest.fixture(scope="module")
def compiled(folder: Path, table: Path, database: Path) -> Path:
    path = folder / "trees.collage"
    text = " ".join(succeeds("compile", table, "-o", path, "--db", database, *QUICK).split())
    assert " for 1000 rows, " in text and " for one, by " in text and "its operators map rows to rows" in text
    return path


def test_show_and_run(compiled: Path, tmp_path: Path) -> None:
    assert "on one row" in succeeds("show", compiled, "--details")
    found = json_of("show", compiled, "--json")
    assert found["rows"] == 1000 and found["one_row_us"] > 0 and found["inputs"] == {"X": [-1, COLUMNS]}
    for count in (0, 5):
        np.save(tmp_path / "x.npy", rows(count))
        outputs = json_of("run", compiled, "--input", f"X={tmp_path / 'x.npy'}", "--json")["outputs"]
        assert [each["shape"] for each in outputs] == [[count], [count, 3]]
    np.save(tmp_path / "x.npy", rows(5, columns=3))
    fails(2, "run", compiled, "--input", f"X={tmp_path / 'x.npy'}", words=("3 columns, the model takes 4",))


def test_a_batch(table: Path, database: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.collage"
    found = json_of("compile", table, "-o", out, "--db", database, *QUICK, "--batch", "6", "--json")
    assert found["inputs"] == {"X": [6, COLUMNS]} and "rows" not in found
    sets = ("--shape", "X:1x4", "--shape", "X:2x4")
    fails(2, "compile", table, "-o", out, *sets, "--batch", "6", words=("--batch is for one set of shapes",))


def test_bench_has_a_race_for_each_number_of_rows(table: Path, compiled: Path) -> None:
    found = json_of("bench", table, "--module", compiled, "--rows", "1,7", "--rounds", "1", "--json")
    assert [*found["rows"]] == ["1", "7"] and found["engines"] == found["rows"]["7"]["engines"]
    for each in found["rows"].values():
        assert {"collage", "onnxruntime"} <= {*each["engines"]}
        assert all(timing["max_relative_error"] < 1e-6 for timing in each["engines"].values())
    text = succeeds("bench", table, "--module", compiled, "--rows", "1,7", "--rounds", "1", "--quiet")
    assert "\none row\n" in text and "\n7 rows\n" in text and "One row: " in text


def test_bench_refuses_rows_of_other_models(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save_model(elementwise_net(), str(path))
    fails(2, "bench", path, "--rows", "1,7", words=("rows are for models whose operators all map rows to rows",))
    fails(2, "bench", path, "--rows", "1,x", words=("no numbers of rows",))


def test_bench_of_maps_and_texts(folder: Path, database: Path) -> None:
    path, out = folder / "maps.onnx", folder / "maps.collage"
    onnx.save_model(trees(texts=True, zipmap=True), str(path))
    succeeds("compile", path, "-o", out, "--db", database, *QUICK)
    found = json_of("bench", path, "--module", out, "--rows", "5", "--rounds", "1", "--json")
    assert all(timing["max_relative_error"] < 1e-6 for timing in found["engines"].values())


def test_a_file_of_a_library(folder: Path, database: Path, tmp_path: Path) -> None:
    lightgbm = pytest.importorskip("lightgbm")
    table, path, out = rows(200), tmp_path / "booster.txt", tmp_path / "booster.collage"
    data = lightgbm.Dataset(table, table[:, 0] > 0, params={"verbose": -1})
    lightgbm.train({"objective": "binary", "verbose": -1, "num_threads": 1}, data, 3).save_model(str(path))
    found = json_of("compile", path, "-o", out, "--db", database, *QUICK, "--json")
    assert found["model"] == "booster" and found["rows"] == 1000
    about = ("--module", out, "--rows", "3", "--rounds", "1", "--json")
    assert "lightgbm" in json_of("bench", path, *about)["rows"]["3"]["engines"]


def test_an_unclear_file_and_a_program(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text("{}")
    fails(1, "compile", path, "-o", tmp_path / "out.collage", words=("LightGBM text", "CatBoost", "joblib"))
    path = tmp_path / "model.joblib"
    path.write_bytes(b"\x80\x04N.")
    fails(2, "compile", path, "-o", tmp_path / "out.collage", words=("programs", "--trust"))
