"""``collage compile`` with samples and a tolerance: what is wrong with them is one line, and the curve is drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.helpers.cli.helpers import fails, json_of


def test_a_folder_that_does_not_exist_is_named(network: Path, tmp_path: Path) -> None:
    to = ("compile", network, "-o", tmp_path / "out.collage", "--input")
    for folder in ("samples/", "samples"):
        fails(2, *to, folder, words=(f"there is no folder {folder}", "INPUT=file.npy"))
    fails(2, *to, "image.npy", words=("names no input", "INPUT=file.npy"))


def test_bad_samples_are_refused_with_one_line(network: Path, database: Path, tmp_path: Path) -> None:
    out, folder = tmp_path / "out.collage", tmp_path / "samples"
    folder.mkdir()
    common = ("compile", network, "-o", out, "--db", database, "--tolerance", "1e-2")
    samples = (*common, "--input", folder)
    fails(2, *samples, words=("holds no samples", "numpy.savez"))
    (folder / "1.npz").write_bytes(b"no archive")
    fails(2, *samples, words=("1.npz cannot be read", "numpy.savez"))
    fails(2, *common, "--input", tmp_path / "gone.npz", words=("there is no file", "gone.npz"))
    np.savez(folder / "1.npz", x=np.ones((2, 2), np.float32))
    fails(2, *samples, words=("sample 1: input x ",))
    fails(2, *samples, "--input", "x=x.npy", words=("not both",))
    fails(2, *common, "--metric", "top1", words=("top1 says nothing on made-up inputs", "--input"))
    assert not out.exists()
    found = json_of(*common, "--quick", "--json")
    assert found["errors"]["tolerance"] == 1e-2
    assert found["errors"]["samples"] == "4 made-up inputs"


def test_the_curve_has_a_module_for_each_tolerance(network: Path, database: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.collage"
    options = ("--db", database, "--backends", "onnxruntime", "--threads", "1", "--budget", "600")
    found = json_of("compile", network, "-o", out, *options, "--pareto", "--json")
    assert set(found["modules"]) == {"0", "0.001", "0.003", "0.01", "0.03"}
    assert all(Path(file).exists() for file in found["modules"].values())
    assert found["modules"]["0"] == str(out)
    assert {"collage float32", "collage 0.01", "onnxruntime"} <= found["points"].keys()
    assert found["points"]["collage float32"]["error"] < 1e-5
    told = [json_of("show", file, "--json") for file in found["modules"].values()]
    assert {each["budget_s"] for each in told} == {600.0}
    pytest.importorskip("matplotlib")
    assert Path(found["picture"]).stat().st_size > 1000


def test_a_metric_without_a_tolerance_is_refused(network: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.collage"
    words = ("--metric is for --tolerance or --pareto; give that, too, or leave --metric out.",)
    fails(2, "compile", network, "-o", out, "--metric", "cosine", words=words)
    fails(2, "compile", network, "-o", out, "--metric", "output", "--tolerance", "0", words=words)
    assert not out.exists()
