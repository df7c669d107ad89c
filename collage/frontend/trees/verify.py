"""Comparing a converted scikit-learn estimator with the estimator itself.

skl2onnx converts some into models that predict otherwise, without a word: a calibrated classifier around LightGBM 4.7,
which is calibrated on its ``decision_function``, is one.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from collage.core.library_text import library_text
from collage.errors import ModelError
from collage.frontend.session import reference_run
from collage.frontend.trees.booster import INPUT
from collage.frontend.trees.columns import Column

log = logging.getLogger(__name__)

_ROWS = 64
_SAME_ROWS = 0.9
"""The share of rows that have to agree. In float32, a number beside a threshold may go the other way."""
_TOLERANCE = 1e-3


def check_predictions(
    obj: Any,
    model: onnx.ModelProto,
    columns: Sequence[Column],
    apart: bool,
    what: str,
    dtype: type[np.floating[Any]],
) -> None:
    """Raise ModelError if the model predicts otherwise than the estimator on rows that are drawn at random.

    If it does so on rows with missing numbers only, that is a warning: an imputed number is often at a threshold, and
    skl2onnx computes in float32. Estimators that refuse such rows are not checked. ``apart`` says whether each column
    is an input of its own, ``dtype`` what numbers are.
    """
    named = {each.key: each.value for each in model.metadata_props}
    checked = [name for name in ("predict", "predict_proba") if f"collage.{name}" in named]
    for missing in (False, True) if checked else ():
        rows, feeds = _drawn(columns, apart, dtype, missing=missing)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                wanted = {name: np.asarray(getattr(obj, name)(rows)) for name in checked}
        except Exception as error:  # estimators raise anything for values that they do not like
            text = library_text(error)
            log.info("%s is not compared with its ONNX model, since it refuses made-up rows: %s", what, text)
            continue
        given = {each.name for each in model.graph.input}
        try:
            outputs = reference_run(model, {name: value for name, value in feeds.items() if name in given})
        except Exception as error:  # ONNX Runtime's exceptions share no base class but Exception
            raise ModelError(f"ONNX Runtime cannot run what skl2onnx made of {what}: {library_text(error)}") from error
        found = dict(zip((each.name for each in model.graph.output), outputs, strict=True))
        for name in checked:
            share = _agreeing(np.asarray(found[named[f"collage.{name}"]]), wanted[name])
            if share >= _SAME_ROWS:
                continue
            differs = f"{name} differs from its own in {1 - share:.0%} of {_ROWS} rows"
            apart_from = f"skl2onnx made a model of {what} whose {differs}"
            if not missing or dtype == np.float64:
                raise ModelError(f"{apart_from}: Collage does not take it.")
            log.warning("%s with missing numbers: it computes in float32, and these are near thresholds", apart_from)


def _drawn(
    columns: Sequence[Column], apart: bool, dtype: type[np.floating[Any]], *, missing: bool
) -> tuple[Any, Mapping[str, NDArray[Any]]]:
    """Rows for the estimator, perhaps with missing numbers, and the same as inputs of the model."""
    rng = np.random.default_rng(0)
    scales = 10.0 ** rng.integers(0, 4, (_ROWS, 1))
    drawn: list[NDArray[Any]] = []
    for each in columns:
        if each.categories:
            known = np.empty(len(each.categories), object)
            known[:] = each.categories
            values = rng.choice(known, (_ROWS, 1))
            drawn.append(values if each.is_text else values.astype(dtype))
        else:
            numbers = (rng.standard_normal((_ROWS, 1)) * scales).astype(dtype)
            drawn.append(np.where(missing & (rng.random((_ROWS, 1)) < 0.2), dtype(np.nan), numbers))
    if not apart:
        table = np.concatenate(drawn, axis=1)
        return table, {INPUT: table}
    import pandas

    feeds = {each.name: values for each, values in zip(columns, drawn, strict=True)}
    return pandas.DataFrame({name: values[:, 0] for name, values in feeds.items()}), feeds


def _agreeing(found: NDArray[Any], wanted: NDArray[Any]) -> float:
    """The share of rows in which all values agree."""
    if found.size != wanted.size or len(found) != len(wanted):
        return 0.0
    found, wanted = found.reshape(len(wanted), -1), wanted.reshape(len(wanted), -1)
    if "b" in (wanted.dtype.kind, found.dtype.kind):
        same = found == wanted
    elif wanted.dtype.kind not in "iuf" or found.dtype.kind not in "iuf":
        same = found.astype(str) == wanted.astype(str)
    else:
        wanted = wanted.astype(np.float64)
        same = np.abs(found - wanted) <= _TOLERANCE * (np.abs(wanted) + np.abs(wanted).mean(axis=0, keepdims=True))
    return float(same.all(axis=1).mean())
