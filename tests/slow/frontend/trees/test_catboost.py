"""CatBoost's predictions. Sums of one target are equal to the bit, those of several are rounded to float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collage.errors import ModelError
from collage.frontend.trees.files import read_model_file, recognise
from collage.frontend.trees.objects import from_object
from tests.slow.frontend.trees.compared import Array, assert_close, hostile, outputs, table, target

catboost = pytest.importorskip("catboost")
pytestmark = pytest.mark.filterwarnings("ignore")

X = table(1).astype(np.float32)
S = target(X)
THREE = np.digitize(S, [0, 0.5])
CLASSIFIERS: dict[str, Array] = {
    "Logloss": S > 0.3,
    "CrossEntropy": (S > 0.3) * 1.0,
    "Focal:focal_alpha=0.5;focal_gamma=2": S > 0.3,
    "MultiClass": THREE,
    "MultiClassOneVsAll": np.array(["x", "y", "z"])[THREE],
    "MultiLogloss": np.stack([S > 0, S > 0.5], 1) * 1,
}
REGRESSORS: dict[str, Array] = {
    "RMSE": S,
    "Poisson": np.abs(S),
    "Tweedie:variance_power=1.5": np.abs(S),
    "MultiRMSE": np.stack([S, S * S], 1),
    "MultiQuantile:alpha=0.1,0.5": S,
    "Quantile": S,
    "MAE": S,
    "LogLinQuantile": np.abs(S),
    "Huber:delta=1": S,
}
SETTINGS = [(nan, grow) for nan in ("Min", "Max") for grow in ("SymmetricTree", "Lossguide", "Depthwise")]


def train(loss: str, nan: str = "Min", grow: str = "SymmetricTree") -> Any:
    kind = catboost.CatBoostClassifier if loss in CLASSIFIERS else catboost.CatBoostRegressor
    model = kind(
        loss_function=loss, nan_mode=nan, grow_policy=grow, iterations=8, depth=4, verbose=0, thread_count=1,
        allow_writing_files=False,
    )  # fmt: skip
    return model.fit(X, {**CLASSIFIERS, **REGRESSORS}[loss])


def rows(model: Any, seed: int = 5) -> Array:
    borders = model.get_borders()
    with np.errstate(over="ignore"):
        return hostile(seed, [each for of in borders.values() for each in of]).astype(np.float32)


CASES = [(loss, "Min", "SymmetricTree") for loss in (*CLASSIFIERS, *REGRESSORS)]
CASES += [(loss, nan, grow) for loss in ("Logloss", "MultiClass", "RMSE") for nan, grow in SETTINGS[1:]]


@pytest.mark.parametrize(("loss", "nan", "grow"), CASES)
def test_estimator(tmp_path: Path, loss: str, nan: str, grow: str) -> None:
    """The estimator, its files, and the base class that is loaded from them, which predicts sums."""
    model = train(loss, nan, grow)
    x = rows(model)
    converted = from_object(model)
    found, probabilities = outputs(converted, x)
    wanted = model.predict(x)
    # CatBoost gives labels of several classes as one column.
    assert_close(found, wanted[:, 0] if loss.startswith("MultiClass") else wanted, atol=1e-7 if "Multi" in loss else 0)
    if loss in CLASSIFIERS:
        assert_close(probabilities, model.predict_proba(x))
    for name, kind in (("model.cbm", "CatBoost binary"), ("model.json", "CatBoost JSON")):
        model.save_model(tmp_path / name, format=name.rpartition(".")[2])
        assert recognise(tmp_path / name) == kind
        for each, other in zip(outputs(read_model_file(tmp_path / name), x), (found, probabilities), strict=True):
            np.testing.assert_array_equal(each, other)
    base = catboost.CatBoost().load_model(str(tmp_path / "model.cbm"))
    sums, wanted = outputs(from_object(base), x)[0], base.predict(x)
    if sums.ndim == 1:
        np.testing.assert_array_equal(sums, wanted)
    else:
        assert_close(sums, wanted, atol=1e-7)


def test_a_threshold_of_the_probability() -> None:
    model = train("Logloss")
    model.set_probability_threshold(0.3)
    x = rows(model)
    assert_close(outputs(from_object(model), x)[0], model.predict(x))


LABELS = {"booleans": (False, True), "integers": (3, 7), "floats": (0.0, 1.0), "text": ("a", "b")}


@pytest.mark.parametrize("name", LABELS)
def test_labels(name: str) -> None:
    labels = np.array(LABELS[name])[(S > 0.3) * 1]
    model = catboost.CatBoostClassifier(iterations=3, verbose=0, thread_count=1, allow_writing_files=False)
    model.fit(X, labels)
    x = rows(model)
    assert_close(outputs(from_object(model), x)[0], model.predict(x))


def test_changed_models(tmp_path: Path) -> None:
    """Scale and bias, a sum of models, fewer trees, and fewer features."""
    model = train("RMSE")
    x = rows(model)
    model.set_scale_and_bias(2.0, 3.0)
    np.testing.assert_array_equal(outputs(from_object(model), x)[0], model.predict(x))
    total = catboost.sum_models([model, model], weights=[0.5, 0.7])
    np.testing.assert_array_equal(outputs(from_object(total), x)[0], total.predict(x))
    model.shrink(3)
    np.testing.assert_array_equal(outputs(from_object(model), x)[0], model.predict(x))
    model.drop_unused_features()
    for name in ("cbm", "json"):
        model.save_model(tmp_path / name, format=name)
        fewer = read_model_file(tmp_path / name)
        count = fewer.graph.input[0].type.tensor_type.shape.dim[1].dim_value
        np.testing.assert_array_equal(outputs(fewer, x[:, :count])[0], model.predict(x))


def test_damaged_binary_files(tmp_path: Path) -> None:
    """CatBoost itself crashes on some of these."""
    rng = np.random.default_rng(0)
    for grow in ("SymmetricTree", "Lossguide"):
        train("RMSE", grow=grow).save_model(tmp_path / "model.cbm")
        data = (tmp_path / "model.cbm").read_bytes()
        refused = 0
        for attempt in range(250):
            changed = bytearray(data)
            if attempt % 8 == 0:
                del changed[rng.integers(4, len(data)) :]
            for at in rng.integers(4, len(changed), 3):
                changed[at] = rng.integers(0, 256)
            (tmp_path / "model.cbm").write_bytes(changed)
            try:
                read_model_file(tmp_path / "model.cbm")
            except ModelError:
                refused += 1
        assert refused > 60


def test_refused() -> None:
    with pytest.raises(ModelError, match="not fitted yet"):
        from_object(catboost.CatBoostClassifier())
    x = np.array([["a", "b", "c", "a"], [1, 2, 3, 4]], object).T
    model = catboost.CatBoostRegressor(iterations=2, verbose=0, allow_writing_files=False)
    with pytest.raises(ModelError, match=r"categorical features of CatBoost \(0\)"):
        from_object(model.fit(x, [1, 2, 3, 4], cat_features=[0]))
    assert from_object(catboost.Pool(X)) is None
