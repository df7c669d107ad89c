"""A small table of numbers and categories, and pipelines that are fitted on it."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

ROWS = 900


@cache
def table() -> pd.DataFrame:
    """Numbers a, with NaN, and b, texts c and whole numbers d."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "a": rng.normal(size=ROWS),
            "b": rng.integers(0, 50, ROWS).astype(float),
            "c": rng.choice(list("uvwxyz"), ROWS),
            "d": rng.integers(0, 30, ROWS),
        }
    )
    frame.loc[rng.random(ROWS) < 0.05, "a"] = np.nan
    return frame


@cache
def labels(classes: int = 2) -> Any:
    """Numbers of classes, from 0, that the columns tell something about."""
    frame = table()
    line = frame.a.fillna(0) + 1.5 * (frame.c == "x") - frame.b / 25 + np.sin(frame.d)
    line = line.to_numpy() + np.random.default_rng(1).normal(size=ROWS) / 2
    return np.searchsorted(np.quantile(line, np.arange(1, classes) / classes), line)


def strange() -> pd.DataFrame:
    """Rows with categories that no encoder has seen."""
    frame = table().copy()
    frame.loc[:20, "c"], frame.loc[10:30, "d"] = "new", 99
    return frame


def pipeline(*steps: Any, numbers: Any = "passthrough", categories: Any = None) -> Pipeline:
    """Encoders and ``steps``, not fitted."""
    encoder = categories or OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    pre = ColumnTransformer([("num", numbers, ["a", "b"]), ("cat", encoder, ["c", "d"])])
    return make_pipeline(pre, *steps)


def boosted(**settings: Any) -> Any:
    """A small classifier of LightGBM."""
    import lightgbm

    return lightgbm.LGBMClassifier(
        **({"n_estimators": 8, "num_leaves": 8, "learning_rate": 0.3, "verbose": -1, "n_jobs": 1} | settings)
    )


@cache
def fitted(scaled: bool = False) -> Pipeline:
    """A pipeline that ends with LightGBM, fitted on the first two thirds of the rows."""
    made = pipeline(boosted(), numbers=StandardScaler() if scaled else "passthrough")
    return made.fit(table()[: ROWS * 2 // 3], labels()[: ROWS * 2 // 3])


def halves() -> tuple[Any, Any, Any, Any]:
    """Training rows and labels, and validation rows and labels."""
    many = ROWS * 2 // 3
    return table()[:many], labels()[:many], table()[many:], labels()[many:]
