"""Model files are data from strangers: whatever they hold, they are read, or refused in one line."""

from __future__ import annotations

import json
import pickle
import random
import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from collage.errors import ModelError, UsageError
from collage.frontend.trees.files import read_model_file, recognise
from collage.frontend.trees.ubjson import read_ubjson
from tests.unit.frontend.trees import written

FILES = {
    "LightGBM text": written.lightgbm(2).data,
    "XGBoost JSON": written.xgboost(2).data,
    "XGBoost UBJSON": written.ubjson(json.loads(written.xgboost(3).data)),
    "CatBoost JSON": written.catboost(2).data,
    "CatBoost JSON of several targets": written.catboost(3, targets=3).data,
}
KINDS = {name: name.partition(" of ")[0] for name in FILES}


def read(folder: Path, data: bytes, kind: str) -> None:
    """Read a file, whose start shows its kind, also if it was damaged there."""
    file = folder / "model"
    file.write_bytes(data)
    if recognise(data) != kind:
        return
    try:
        read_model_file(file)
    except ModelError as error:
        text = str(error)
        if "\n" in text or len(text) > 400:
            raise AssertionError(text) from error
        raise


@pytest.mark.parametrize("name", FILES)
def test_truncated(tmp_path: Path, name: str) -> None:
    """Cut anywhere before the end of the trees."""
    data = FILES[name]
    end = data.index(b"end of trees") if name == "LightGBM text" else len(data)
    for length in range(0, end, 49):
        file = tmp_path / "model"
        file.write_bytes(data[:length])
        with pytest.raises(ModelError):
            read_model_file(file)


@pytest.mark.parametrize("name", FILES)
def test_mutated(tmp_path: Path, name: str) -> None:
    """Bytes, digits and parts changed at random: read, or ModelError."""
    data, rng, refused = FILES[name], random.Random(name), 0
    pieces = [
        b"9",
        b"-",
        b"99999999999",
        b"e999",
        b"NaN",
        b"-1",
        b"[",
        b"{",
        b"null",
        b"true",
        b'"a"',
        b"\xff" * 4,
        b"",
    ]
    for _ in range(200):
        changed = bytearray(data)
        for _ in range(rng.choice([1, 1, 2, 5])):
            at = rng.randrange(len(changed))
            if rng.random() < 0.5:
                changed[at] = rng.randrange(256)
            else:
                changed[at : at + rng.choice([0, 1, 8])] = rng.choice(pieces)
        try:
            read(tmp_path, bytes(changed), KINDS[name])
        except ModelError:
            refused += 1
    assert refused > 40


def line(name: str, change: Callable[[list[str]], object]) -> Callable[[bytes], bytes]:
    """A change of the values in the first line with a name that has more than one."""

    def changed(data: bytes) -> bytes:
        lines = data.decode().split("\n")
        at = next(i for i, each in enumerate(lines) if each.startswith(f"{name}=") and " " in each)
        values = lines[at].partition("=")[2].split(" ")
        change(values)
        lines[at] = f"{name}={' '.join(values)}"
        return "\n".join(lines).encode()

    return changed


def replaced(old: str, new: str) -> Callable[[bytes], bytes]:
    def changed(data: bytes) -> bytes:
        assert re.search(old.encode(), data)
        return re.sub(old.encode(), new.encode(), data, count=1)

    return changed


LIGHTGBM = {
    "a cycle": (line("left_child", lambda v: v.__setitem__(-1, "0")), "two paths"),
    "a child out of range": (line("left_child", lambda v: v.__setitem__(0, "99")), "out of range"),
    "a leaf out of range": (line("right_child", lambda v: v.__setitem__(0, "-99")), "out of range"),
    "a feature out of range": (line("split_feature", lambda v: v.__setitem__(0, "4")), "does not have"),
    "a negative feature": (line("split_feature", lambda v: v.__setitem__(0, "-1")), "does not have"),
    "a leaf too many": (line("leaf_value", lambda v: v.append("1")), "values of leaf_value"),
    "an infinite leaf": (line("leaf_value", lambda v: v.__setitem__(0, "inf")), "infinite or NaN"),
    "no number": (line("threshold", lambda v: v.__setitem__(0, "x")), "no numbers"),
    "a NaN": (line("threshold", lambda v: v.__setitem__(0, "nan")), "NaN"),
    "an unknown decision": (line("decision_type", lambda v: v.__setitem__(0, "12")), "type of decision"),
    "a missing tree": (replaced("Tree=1\n", "Tree=7\n"), "tree 1 is missing"),
    "fewer sizes": (replaced("tree_sizes=", "tree_sizes=1 "), "sizes of 5 trees"),
    "a name too many": (replaced("feature_names=", "feature_names=a "), "names of 5"),
    "an old version": (replaced("version=v4", "version=v2"), "format v2"),
    "a linear tree": (replaced("is_linear=0", "is_linear=1"), "linear tree"),
    "an unknown objective": (replaced("objective=regression", "objective=magic"), "objective magic"),
    "text that is no UTF-8": (lambda data: data.replace(b"f0", b"\xff\xff"), "UTF-8"),
    "no trees": (lambda _: written.lightgbm(0, ()).data, "no trees"),
    "a number and categories": (
        line("split_feature", lambda v: v.__setitem__(next(i for i, each in enumerate(v) if each != "3"), "3")),
        "as categories and as a number",
    ),
}


@pytest.mark.parametrize("name", LIGHTGBM)
def test_lightgbm(tmp_path: Path, name: str) -> None:
    change, message = LIGHTGBM[name]
    data = written.lightgbm(5, (9, 9, 9, 9)).data
    with pytest.raises(ModelError, match=message):
        read(tmp_path, change(data), "LightGBM text")


def tree_of(value: Any) -> Any:
    return value["learner"]["gradient_booster"]["model"]["trees"][2]


XGBOOST: dict[str, tuple[Callable[[Any], object], str]] = {
    "a cycle": (lambda v: tree_of(v)["left_children"].__setitem__(0, 0), "two paths"),
    "two parents": (lambda v: tree_of(v)["left_children"].__setitem__(0, tree_of(v)["right_children"][0]), "two paths"),
    "a child out of range": (lambda v: tree_of(v)["right_children"].__setitem__(0, 99), "out of range"),
    "a feature out of range": (lambda v: tree_of(v)["split_indices"].__setitem__(0, 99), "does not have"),
    "numbers of another count": (lambda v: tree_of(v)["split_conditions"].append(1.0), "values of splits"),
    "text for numbers": (lambda v: tree_of(v).__setitem__("split_indices", ["a"] * 99), "right type"),
    "no numbers": (lambda v: tree_of(v).pop("default_left"), "no default_left"),
    "nested numbers": (lambda v: tree_of(v).__setitem__("split_type", [[1, 2], [3]]), "no numbers"),
    "a category out of range": (lambda v: tree_of(v).__setitem__("categories", [1 << 25] * 99), "16,777,215"),
    "sets that overlap": (lambda v: tree_of(v).__setitem__("categories_sizes", [0] * 3), "sets of categories|empty"),
    "an infinite leaf": (lambda v: tree_of(v)["split_conditions"].__setitem__(-2, float("inf")), "infinite or NaN"),
    "fewer trees": (lambda v: v["learner"]["gradient_booster"]["model"]["trees"].pop(), "says that it has"),
    "a target out of range": (
        lambda v: v["learner"]["gradient_booster"]["model"]["tree_info"].__setitem__(0, 2),
        "does not have",
    ),
    "a linear booster": (lambda v: v["learner"]["gradient_booster"].__setitem__("name", "gblinear"), "gblinear"),
    "an unknown booster": (lambda v: v["learner"]["gradient_booster"].__setitem__("name", "x"), "booster x"),
    "an unknown objective": (lambda v: v["learner"]["objective"].__setitem__("name", "my:own\n"), r"my:own\\n"),
    "no base score": (lambda v: v["learner"]["learner_model_param"].__setitem__("base_score", "x"), "no number"),
    "base scores of another count": (
        lambda v: v["learner"]["learner_model_param"].__setitem__("base_score", "[1,2,3]"),
        "for 2 targets",
    ),
    "many features": (
        lambda v: v["learner"]["learner_model_param"].__setitem__("num_feature", "99999999999"),
        "99999999999 features",
    ),
}


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("name", XGBOOST)
def test_xgboost(tmp_path: Path, name: str, binary: bool) -> None:
    change, message = XGBOOST[name]
    value = json.loads(written.xgboost(5, (9, 9, 9, 9)).data)
    change(value)
    data = written.ubjson(value) if binary else json.dumps(value).encode()
    with pytest.raises(ModelError, match=message):
        read(tmp_path, data, "XGBoost UBJSON" if binary else "XGBoost JSON")


CATBOOST: dict[str, tuple[Callable[[Any], object], str]] = {
    "a feature out of range": (
        lambda v: v["oblivious_trees"][0]["splits"][0].__setitem__("float_feature_index", 9),
        "does not have",
    ),
    "leaves of another count": (lambda v: v["oblivious_trees"][0]["leaf_values"].pop(), "values of leaves"),
    "text for a leaf": (lambda v: v["oblivious_trees"][0]["leaf_values"].__setitem__(0, "x"), "no number"),
    "a split of a category": (
        lambda v: v["oblivious_trees"][0]["splits"][0].__setitem__("split_type", "OneHotFeature"),
        "OneHotFeature",
    ),
    "categories": (
        lambda v: v["features_info"].__setitem__("categorical_features", [{"feature_id": "colour"}]),
        r"categorical features of CatBoost \(colour\)",
    ),
    "text features": (lambda v: v["features_info"].__setitem__("text_features", [3]), "text features"),
    "no features": (lambda v: v["features_info"].__setitem__("float_features", []), "there are none"),
    "a feature twice": (
        lambda v: v["features_info"]["float_features"][0].__setitem__("flat_feature_index", 1),
        "not numbered",
    ),
    "an unknown treatment of NaN": (
        lambda v: v["features_info"]["float_features"][0].__setitem__("nan_value_treatment", "x"),
        "treats NaN as x",
    ),
    "an infinite bias": (lambda v: v.__setitem__("scale_and_bias", [1, [float("inf")]]), "infinite or NaN"),
    "variances": (
        lambda v: v["model_info"]["params"]["loss_function"].__setitem__("type", "RMSEWithUncertainty"),
        "RMSEWithUncertainty",
    ),
    "no trees": (lambda v: v.__setitem__("oblivious_trees", []), "no trees"),
    "deep trees": (
        lambda v: v["oblivious_trees"][0].__setitem__("splits", v["oblivious_trees"][0]["splits"] * 9),
        "levels",
    ),
}


@pytest.mark.parametrize("name", CATBOOST)
def test_catboost(tmp_path: Path, name: str) -> None:
    change, message = CATBOOST[name]
    value = json.loads(written.catboost(5).data)
    change(value)
    with pytest.raises(ModelError, match=message):
        read(tmp_path, json.dumps(value).encode(), "CatBoost JSON")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "0 are left"),
        (b"{" + b"L" + struct.pack(">q", 1 << 40), "are announced"),
        (b"[$d#L" + struct.pack(">q", 1 << 40), "are announced"),
        (b"[$Z#L" + struct.pack(">q", 1 << 40), "values are announced"),
        (b"[#L" + struct.pack(">q", -1), "negative"),
        (b"[" * 100, "nested deeper"),
        (b"[$i]", "no count"),
        (b"{i\x01ai\x01i\x01ai\x02}", "there twice"),
        (b"?", "unknown"),
        (b"i\x01i", "follows its end"),
        (b"Si\x01\xff", "UTF-8"),
    ],
)
def test_ubjson(data: bytes, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_ubjson(data, "it")


def test_ubjson_values() -> None:
    data = b"{i\x01a[i\x05Nl\x00\x00\x00\x07TFZCx]i\x01bd?\x80\x00\x00U\x01cSi\x02hii\x01e[$U#i\x03\x01\x02\xff}"
    found = read_ubjson(data, "it")
    assert {**found, "e": found["e"].tolist()} == {
        "a": [5, 7, True, False, None, "x"],
        "b": 1.0,
        "c": "hi",
        "e": [1, 2, 255],
    }


def test_deep_json(tmp_path: Path) -> None:
    """Nested deeper than Python's own limit."""
    data = b'{"learner": {"gradient_booster": ' + b"[" * 100_000
    with pytest.raises(ModelError, match="no JSON"):
        read(tmp_path, data, "XGBoost JSON")


def test_programs_need_trust(tmp_path: Path) -> None:
    """A pickle is recognised, compressed too, and never loaded without trust."""

    class Ran:
        def __reduce__(self) -> Any:
            return (Path.write_text, (tmp_path / "ran", "it ran"))

    program = pickle.dumps(Ran())
    for data in (program, zlib.compress(program)):
        assert recognise(data) == "joblib or pickle"
        (tmp_path / "model.joblib").write_bytes(data)
        with pytest.raises(UsageError, match="--trust runs it"):
            read_model_file(tmp_path / "model.joblib")
        assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"tree", b"\x08\x07", b"x\x9cnot zlib", b"hello", b'{"learner": 1}', b"{"]
)
def test_unknown_files(tmp_path: Path, data: bytes) -> None:
    assert recognise(data) is None
    (tmp_path / "model").write_bytes(data)
    with pytest.raises(ModelError, match=r"It takes ONNX, and LightGBM text, .* CatBoost JSON, joblib or pickle"):
        read_model_file(tmp_path / "model")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot read"):
        recognise(tmp_path / "none")
