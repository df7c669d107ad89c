"""Models of tables from end to end: compiled once, and run with any number of rows."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import collage
from tests.helpers.tables import COLUMNS, pipeline, rows, trees

COUNTS = (0, 1, 7, 1000)
NAMES = [f"feature {number}" for number in range(COLUMNS)]


def compiled(model: onnx.ModelProto, database: Path, **options: Any) -> collage.CompiledModule:
    about: dict[str, Any] = {"backends": ["onnxruntime"], "budget_s": 10.0, "db": database, "progress": False}
    module = collage.compile(model, **{**about, "quick": True, **options})
    assert isinstance(module, collage.CompiledModule)
    return module


def named_trees() -> onnx.ModelProto:
    model = trees()
    onnx.helper.set_model_props(model, {"collage.features": json.dumps(NAMES)})
    return model


def expected(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[Any]:
    return list(onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds))


def alike(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted)
    if isinstance(wanted, list):
        assert found == [pytest.approx(each) for each in wanted]
    elif wanted.dtype.kind == "f":
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
    else:
        np.testing.assert_array_equal(found, wanted)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rows")


@pytest.fixture(scope="module")
def module(folder: Path) -> collage.CompiledModule:
    return compiled(named_trees(), folder / "db")


def test_it_takes_any_number_of_rows(module: collage.CompiledModule, folder: Path) -> None:
    assert module.inputs == {"X": f"float32[?x{COLUMNS}]"}
    assert module.outputs == {"label": "int64[?]", "probabilities": "float32[?x3]"}
    module.save(folder / "trees.collage")
    loaded = collage.load(folder / "trees.collage")
    assert isinstance(loaded, collage.CompiledModule)
    for each in (module, loaded):
        for count in COUNTS:
            table = rows(count)
            wanted = expected(trees(), {"X": table})
            for found in (each(table), each.run({"X": table}).values(), each(np.asfortranarray(table))):
                for one, other in zip(found, wanted, strict=True):
                    alike(one, other)
            call = each.bind({"X": table})
            assert isinstance(call, collage.BoundEngine)
            call()
            for one, other in zip(call.outputs.values(), wanted, strict=True):
                alike(one, other)


def test_a_bound_call_reads_its_rows_again(module: collage.CompiledModule) -> None:
    table = rows(7)
    call = module.bind({"X": table})
    for seed in range(3):
        table[...] = rows(7, seed)
        call()
        alike(call.outputs["probabilities"], expected(trees(), {"X": table})[1])
    with pytest.raises(collage.InputError, match="give one"):
        module.bind()


def test_what_does_not_fit(module: collage.CompiledModule) -> None:
    with pytest.raises(collage.InputError, match=rf"input X has 3 columns, the model takes {COLUMNS}"):
        module(rows(5, columns=3))
    with pytest.raises(collage.InputError, match=r"dtype float64, .*astype\('float32'\)"):
        module(rows(5).astype(np.float64))
    with pytest.raises(collage.InputError, match="X has shape 4"):
        module(rows(1)[0])


def test_predictions(module: collage.CompiledModule) -> None:
    table = rows(9)
    label, probabilities = expected(trees(), {"X": table})
    for given in (table, table.astype(np.float64), table.tolist()):
        np.testing.assert_array_equal(module.predict(given), label)
        np.testing.assert_allclose(module.predict_proba(given), probabilities, rtol=1e-5)
    named = dict(zip(reversed(NAMES), table.T[::-1], strict=True))
    np.testing.assert_array_equal(module.predict(named), label)
    del named[NAMES[0]]
    with pytest.raises(collage.InputError, match=r"lacks columns: feature 0\."):
        module.predict(named)


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_module_is_not_pickled(module: collage.CompiledModule, copied: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"clone\(\) .*save\(path\) .*collage\.load\(path\)"):
        copied(module)


def test_times_are_of_a_block_and_of_one_row(module: collage.CompiledModule, folder: Path) -> None:
    found = module.summary()
    assert found["rows"] == 1000 and found["inputs"] == {"X": [-1, COLUMNS]}
    assert 0 < found["one_row_us"] < found["measured_us"]
    assert {*found["one_row"]} == {*found["finalists"]}
    assert "for 1000 rows" in repr(module)
    assert not module.program.launches
    again = compiled(named_trees(), folder / "db")
    assert again.report.measurements_made == 0
    assert again.report.one_row == module.report.one_row


def test_classes_of_texts_and_maps(folder: Path) -> None:
    model = trees(texts=True, zipmap=True)
    module = compiled(model, folder / "db")
    for count in COUNTS:
        wanted = expected(model, {"X": rows(count)})
        for one, other in zip(module(rows(count)), wanted, strict=True):
            alike(one, other)
        call = module.bind({"X": rows(count)})
        call()
        for one, other in zip(call.outputs.values(), wanted, strict=True):
            alike(one, other)
    assert set(module.predict(rows(50))) <= {"cat", "dog", "emu"}
    np.testing.assert_allclose(module.predict_proba(rows(2)), [[*each.values()] for each in module(rows(2))[1]])


def test_columns_of_numbers_and_texts(folder: Path) -> None:
    module = compiled(pipeline(), folder / "db")
    table = {"age": [30, None, 50.0], "city": ["oslo", "rome", "kiel"]}
    feeds = {"age": np.float32([[30], [np.nan], [50]]), "city": np.array(table["city"], object)[:, None]}
    (wanted,) = expected(pipeline(), feeds)
    np.testing.assert_allclose(module.predict(table), wanted[:, 0])
    alike(module(feeds), wanted)
    call = module.bind(feeds)
    assert isinstance(call, collage.BoundSuffix)
    call()
    alike(call.outputs["y"], wanted)
    with pytest.raises(collage.InputError, match="different numbers of rows: age 3, city 2"):
        module.run(age=feeds["age"], city=feeds["city"][:2])
    with pytest.raises(collage.UsageError, match="has no probabilities"):
        module.predict_proba(table)


def test_a_batch_fixes_the_rows(folder: Path) -> None:
    module = compiled(trees(), folder / "db", batch=6)
    assert module.inputs == {"X": f"float32[6x{COLUMNS}]"}
    assert "rows" not in module.summary()
    alike(module(rows(6))[1], expected(trees(), {"X": rows(6)})[1])
    np.testing.assert_array_equal(module.predict(rows(6)), expected(trees(), {"X": rows(6)})[0])
    with pytest.raises(collage.UsageError, match="batch must be at least 1"):
        compiled(trees(), folder / "db", batch=0)


def test_a_file_of_an_older_version(module: collage.CompiledModule) -> None:
    """Its report has none of the fields."""
    found = module.report.to_json()
    assert {"rows", "one_row_us", "one_row", "predictions"} <= found.keys()
    old = {name: each for name, each in json.loads(json.dumps(found)).items() if name not in ("rows", "predictions")}
    report = type(module.report).from_json({n: each for n, each in old.items() if not n.startswith("one_row")})
    assert (report.rows, report.one_row_us, report.predictions) == (0, None, {})


def test_an_object_that_is_no_model() -> None:
    with pytest.raises(collage.UsageError, match=r"a builtins\.dict is no model .*LightGBM, XGBoost, CatBoost"):
        collage.compile({})
