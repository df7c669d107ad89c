"""ONNX models of trained objects of LightGBM, XGBoost, CatBoost and scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from collage.frontend.read.rows import LABELS
from collage.frontend.trees.booster import as_model
from collage.frontend.trees.columns import end_of
from collage.frontend.trees.described import describe, library_of
from collage.frontend.trees.pipeline import sklearn_model


def from_object(obj: Any) -> onnx.ModelProto | None:
    """The ONNX model of a trained object; None for what is of none of these libraries.

    Its first output is what ``predict`` of the object gives (see ``as_model``). A library is only imported for objects
    of its own. Raises ModelError, in one line, for what Collage does not take.
    """
    library = library_of(obj)
    if not library:
        return None
    found = describe(obj)
    if found is not None:
        model = as_model(found.booster, found.kind, found.labels, raw=found.raw)
    elif library != "sklearn" or (made := sklearn_model(obj)) is None:
        return None
    else:
        model = made
    _name_labels(end_of(obj, -1) if library == "sklearn" else obj, model)
    return model


def _name_labels(obj: Any, model: onnx.ModelProto) -> None:
    """Note the dtype of the labels that a classifier or a clusterer gives: ONNX has few integers, and one text."""
    kind = next(each.value for each in model.metadata_props if each.key == "collage.kind")
    labels = getattr(obj, {"classifier": "classes_", "other": "labels_"}.get(kind, ""), None)
    if isinstance(labels, np.ndarray) and labels.ndim == 1 and labels.dtype.kind in "biufU":
        model.metadata_props.add(key=LABELS, value=labels.dtype.str)
