"""Saved tunnels predict as before; files are data, but for operators in front."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytest.importorskip("pandas")
pytest.importorskip("lightgbm")

import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PowerTransformer

from collage.errors import ModelError, UsageError
from collage.windtunnel import load, translate
from tests.helpers.windtunnel import fitted, halves, labels, strange, table


@pytest.mark.parametrize("level", ["hard", "L1", "L2", "L3", "L4"])
def test_saved_tunnels(tmp_path: Path, level: str) -> None:
    train, y, apart, of_apart = halves()
    tunnel = translate(fitted())
    if level != "hard":
        tunnel.fine_tune(
            train, y, validation=(apart, of_apart), level=level, epochs=1, tau=(0.2, 0.1), keep_source=False
        )
    tunnel.save(tmp_path / "t")
    found = load(tmp_path / "t")
    np.testing.assert_array_equal(found.predict_proba(strange()), tunnel.predict_proba(strange()))
    assert found.history_[-1:] == tunnel.history_[-1:]
    assert found.get_params()["tau"] == tunnel.get_params()["tau"]
    if level == "hard":
        found.fine_tune(train, y, validation=(apart, of_apart), epochs=1, keep_source=False)
    else:
        with pytest.raises(UsageError, match="current"):
            found.fine_tune(train, y, epochs=1, keep_source=False)
        found.fine_tune(train, y, start="current", level=level, epochs=1, keep_source=False)
        assert found.history_[0].score > 0.5


def test_soft_tunnels_do_not_pass_for_sources(tmp_path: Path) -> None:
    train, y, *_ = halves()
    translate(fitted()).soften(train).save(tmp_path / "t")
    with pytest.raises(UsageError, match="current"):
        load(tmp_path / "t").fine_tune(train, y, keep_source=False)


def test_operators_in_front_are_programs(tmp_path: Path) -> None:
    rows = table()[["b", "d"]]
    source = make_pipeline(PowerTransformer(), LogisticRegression()).fit(rows, labels())
    tunnel = translate(source, front=("powertransformer",))
    tunnel.save(tmp_path / "t")
    with pytest.raises(UsageError, match="trust=True"):
        load(tmp_path / "t")
    found = load(tmp_path / "t", trust=True)
    np.testing.assert_array_equal(found.predict_proba(rows), tunnel.predict_proba(rows))
    with pytest.raises(ModelError, match=r"in front.*powertransformer"):
        found.to_onnx()


def test_damaged_files(tmp_path: Path) -> None:
    """Also with tensors of the wrong shapes, and a program where data are expected."""
    file = tmp_path / "t"
    translate(fitted()).save(file)
    data = file.read_bytes()
    read = torch.load(file, weights_only=True)
    for name, bad in (("cut", data[:500]), ("empty", b""), ("text", b"tree\n" * 9)):
        (tmp_path / name).write_bytes(bad)
        with pytest.raises(ModelError, match=r"^[^\n]*damaged[^\n]*$"):
            load(tmp_path / name)
    for about in ("{}", "[]", "{", read["about"].replace('"Forest"', '"Tree"')):
        torch.save({"about": about, "tensors": read["tensors"]}, file)
        with pytest.raises(ModelError, match=r"^[^\n]*damaged[^\n]*$"):
            load(file)
    torch.save({"about": read["about"].replace('"format": 1', '"format": 9'), "tensors": {}}, file)
    with pytest.raises(ModelError, match="format 9"):
        load(file)
    with pytest.raises(ModelError, match="cannot read"):
        load(tmp_path / "none")
    torch.save({"about": read["about"], "tensors": {"x": Path("x")}}, file)
    with pytest.raises(ModelError, match="damaged"):
        load(file)
