"""The columns that a scikit-learn estimator takes, as far as what it has learnt says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from collage.errors import ModelError


@dataclass(frozen=True)
class Column:
    """A column of the input."""

    name: str
    categories: tuple[Any, ...] = ()
    """The values that an encoder has learnt; empty for plain numbers."""

    @property
    def is_text(self) -> bool:
        return any(isinstance(each, str) for each in self.categories)


def end_of(obj: Any, index: int) -> Any:
    """The first (0) or last (-1) estimator of nested pipelines and searches."""
    from sklearn.pipeline import Pipeline

    while True:
        steps = (
            [step for _, step in obj.steps if step not in (None, "passthrough")] if isinstance(obj, Pipeline) else []
        )
        if steps:
            obj = steps[index]
        elif hasattr(obj, "best_estimator_"):
            obj = obj.best_estimator_
        else:
            return obj


def columns_of(obj: Any, what: str) -> tuple[tuple[Column, ...], bool]:
    """The columns, and whether each has to be an input of its own: a ``ColumnTransformer`` chooses among named ones.

    Raises ModelError for an estimator that does not say how many it takes, and for numbers and text in one array.
    """
    from sklearn.compose import ColumnTransformer

    first = end_of(obj, 0)
    count = getattr(first, "n_features_in_", None)
    if count is None:
        raise ModelError(f"{what} does not say how many features it takes (n_features_in_).")
    categories: list[tuple[Any, ...]] = [()] * int(count)
    chooses = isinstance(first, ColumnTransformer)
    if chooses:
        for name, step, _ in first.transformers_:
            chosen = first._transformer_to_input_indices[name]
            for index, found in zip(chosen, _learnt(step, len(chosen)), strict=True):
                categories[index] = categories[index] or found
    else:
        categories = _learnt(first, int(count))
    named = hasattr(first, "feature_names_in_")
    names = first.feature_names_in_.tolist() if named else [f"column {i}" for i in range(int(count))]
    columns = tuple(Column(str(name), found) for name, found in zip(names, categories, strict=True))
    if not (chooses and named) and len({each.is_text for each in columns}) > 1:
        raise ModelError(f"{what} takes numbers and text in one array: fit it on a DataFrame whose columns have names.")
    return columns, chooses and named


def _learnt(step: Any, count: int) -> list[tuple[Any, ...]]:
    """For each of ``count`` columns, the values that a fitted transformer knows of it."""
    from sklearn.pipeline import Pipeline

    for each in [each for _, each in step.steps] if isinstance(step, Pipeline) else [step]:
        if hasattr(each, "vocabulary_"):
            return [tuple(each.vocabulary_)] * count
        for learnt in ("categories_", "statistics_"):
            values = getattr(each, learnt, None)
            if values is None or len(values) != count:
                continue
            found = [tuple(np.ravel(np.asarray(column, object)).tolist()) for column in values]
            if learnt == "categories_" or any(isinstance(v, str) for column in found for v in column):
                return found
    return [()] * count
