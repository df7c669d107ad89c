"""ONNX models of trained objects of LightGBM, XGBoost, CatBoost and scikit-learn."""

from __future__ import annotations

from typing import Any

import onnx

from collage.frontend.trees.booster import as_model
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
        return as_model(found.booster, found.kind, found.labels, raw=found.raw)
    return sklearn_model(obj) if library == "sklearn" else None
