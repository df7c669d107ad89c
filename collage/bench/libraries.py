"""Libraries that have made models of tables, as contenders: their own predictors, on their own files."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from collage.bench.worker import Outputs, Setup
from collage.kernel.kernel import Call

LIBRARIES = ("lightgbm", "xgboost", "catboost")


def library_of(path: Path) -> str | None:
    """The library that reads the file, if it is installed; None for other files."""
    from collage.frontend.trees.files import recognise

    kind = (recognise(path) or "").lower()
    return next((name for name in LIBRARIES if kind.startswith(name) and find_spec(name) is not None), None)


def lightgbm(setup: Setup) -> tuple[Call, Outputs]:
    """LightGBM's predictor. Its outputs are not compared: they have another form than the ONNX model's."""
    import lightgbm

    booster, table = lightgbm.Booster(model_file=setup.library), _table(setup)

    def run() -> None:
        booster.predict(table, num_threads=setup.threads)

    return run, list


def xgboost(setup: Setup) -> tuple[Call, Outputs]:
    """XGBoost's predictor, without a DMatrix."""
    import xgboost

    booster: Any = xgboost.Booster(model_file=setup.library)
    booster.set_param({"nthread": setup.threads})
    table = _table(setup)

    def run() -> None:
        booster.inplace_predict(table)

    return run, list


def catboost(setup: Setup) -> tuple[Call, Outputs]:
    """CatBoost's predictor."""
    import catboost

    model: Any = catboost.CatBoost()
    model.load_model(setup.library, format="json" if setup.library.endswith(".json") else "cbm")
    table = _table(setup)

    def run() -> None:
        model.predict(table[:], thread_count=setup.threads)  # it makes the array that it is given read-only

    return run, list


def _table(setup: Setup) -> Any:
    (table,) = setup.inputs.values()
    return table
