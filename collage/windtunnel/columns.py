"""The columns that a network reads, and frames as tensors of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from collage.errors import InputError, ModelError
from collage.frontend.trees.ensemble import shown

Array = NDArray[Any]


@dataclass(frozen=True)
class Column:
    """A column of a frame as a network reads it: a number, the code of a category, or the bucket of a number."""

    source: int
    """0 for the frame that is given, else the number of an operator in front, from 1."""
    index: int
    """Its place in that source."""
    name: str
    """For messages, and for frames whose columns have names."""
    kind: Literal["number", "category", "bucket"] = "number"
    keys: tuple[Any, ...] = ()
    """The categories, or the edges of the buckets, sorted. A missing number has the code after the last bucket."""
    strict: bool = False
    """Whether an unseen category, or a missing number, is an error."""
    finite: bool = False
    """Whether an infinite number is an error."""

    @property
    def codes(self) -> int:
        """The number of codes, the last one of which is for unseen categories or missing numbers."""
        return len(self.keys) + (2 if self.kind == "bucket" else 1)


@dataclass(frozen=True)
class Recoded:
    """A raw column in which an operator replaces categories, or numbers, by others."""

    kind: Literal["category", "bucket"]
    keys: tuple[Any, ...]
    values: tuple[Any, ...]
    """The new code of each code, the last one included."""


@dataclass(frozen=True)
class Ref:
    """A raw column on its way through the pipeline."""

    column: Column
    recoded: Recoded | None = None
    fill: Any = None
    """An imputer's value for missing ones, before they are recoded."""


def category_column(ref: Ref, categories: Sequence[Any], table: Array, strict: bool) -> tuple[Column, Array]:
    """The column whose codes choose rows of a table, and the table for them.

    ``table`` is [categories + 1, width] for the categories after they are recoded; so is the last row for unseen ones.
    """
    if ref.recoded is None:
        keys = tuple(_plain(each) for each in categories)
        if ref.fill is not None:
            (place,) = codes(np.array([ref.fill], object), keys)
            known = [number for number, key in enumerate(keys) if key is not None]
            keys = (*(keys[number] for number in known), None)
            table = table[[*known, place, len(table) - 1]]
        return replace(ref.column, kind="category", keys=keys, strict=strict), table
    found = codes(np.array([*ref.recoded.values], object), tuple(_plain(each) for each in categories))
    if strict:
        strict = bool(found[-1] == len(categories))
    return replace(ref.column, kind=ref.recoded.kind, keys=ref.recoded.keys, strict=strict), table[found]


def recode(ref: Ref, kind: Literal["category", "bucket"], keys: Sequence[Any], values: Sequence[Any]) -> Ref:
    """The column after an operator that replaces its values; ``values`` has one more, for unseen or missing ones."""
    keys = tuple(_plain(each) for each in keys)
    before = ref.recoded
    if before is None:
        found = list(values)
        if ref.fill is not None and kind == "bucket":
            found[-1] = found[int(bucket_codes(np.array([ref.fill], np.float64), keys)[0])]
        elif ref.fill is not None:
            (place,) = codes(np.array([ref.fill], object), keys)
            known = [number for number, key in enumerate(keys) if key is not None]
            keys = (*(keys[number] for number in known), None)
            found = [found[number] for number in (*known, place, len(found) - 1)]
        return replace(ref, recoded=Recoded(kind, keys, tuple(found)))
    if kind == "bucket":
        numbers = np.array([*before.values], np.float64)
        chosen = bucket_codes(numbers, keys)
    else:
        chosen = codes(np.array([*before.values], object), keys)
    return replace(ref, recoded=replace(before, values=tuple(values[each] for each in chosen)))


def _plain(value: Any) -> Any:
    """A category as Python's own value, which JSON can hold, or None for NaN."""
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or value is pd.NA or (isinstance(value, float) and value != value):
        return None
    if not isinstance(value, (str, int, float, bool)):
        raise ModelError(f"categories are text or numbers, and {shown(value)} is a {type(value).__name__}.")
    return value


def codes(values: Any, categories: Sequence[Any]) -> NDArray[np.int64]:
    """The place of each value among the categories; their count if it is none. None is the category of NaN, too."""
    column = pd.Series(values).reset_index(drop=True)
    if isinstance(column.dtype, pd.CategoricalDtype):
        of_each = codes(column.cat.categories.to_series(), categories)
        missing = categories.index(None) if None in categories else len(categories)
        at = column.cat.codes.to_numpy()
        return np.where(at < 0, missing, np.append(of_each, 0)[at])
    known = [each for each in categories if each is not None]
    numeric = bool(known) and not any(isinstance(each, str) for each in known)
    if numeric:  # True is 1, as for scikit-learn
        known = [int(each) if isinstance(each, bool) else each for each in known]
        column = column.astype(np.int8) if column.dtype == np.bool_ else column
    if numeric and column.dtype.kind not in "biuf":
        column = column.where(column.notna(), None).infer_objects()
    places = np.flatnonzero([each is not None for each in categories])
    index = pd.Index(known, dtype=None if numeric else object)
    absent = column.isna().to_numpy()
    plain = column if column.dtype.kind in "biuf" else column.astype(object)
    found = index.get_indexer(pd.Index(plain)) if len(index) else np.full(len(column), -1)
    found = np.where(found < 0, len(categories), np.append(places, 0)[found])
    if absent.any():
        found[absent] = categories.index(None) if None in categories else len(categories)
    return found.astype(np.int64)


def bucket_codes(values: NDArray[np.float64], edges: Sequence[float]) -> NDArray[np.int64]:
    """The count of edges up to each number; the code after the last bucket for NaN."""
    found = np.searchsorted(np.asarray(edges, np.float64), values, side="right")
    return np.where(np.isnan(values), len(edges) + 1, found).astype(np.int64)


def read_columns(frames: Sequence[Any], columns: Sequence[Column]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Numbers, [rows, columns that are numbers], and codes, [rows, other columns], of the rows of frames.

    ``frames`` has the rows themselves, and the outputs of the operators in front. Raises InputError for a column that
    is missing or has the wrong type, for unseen categories and infinities if they are errors.
    """
    rows = len(frames[0])
    numbers = [_number(frames[each.source], each) for each in columns if each.kind == "number"]
    found = [_codes(frames[each.source], each) for each in columns if each.kind != "number"]
    return (
        np.stack(numbers, 1) if numbers else np.zeros((rows, 0)),
        np.stack(found, 1) if found else np.zeros((rows, 0), np.int64),
    )


def column_of(frame: Any, column: Column) -> Any:
    """The values of a column. Raises InputError if the frame lacks it."""
    if hasattr(frame, "iloc"):
        name = column.name
        if column.source == 0 and name not in frame.columns:  # LightGBM writes underscores for spaces
            alike = [each for each in frame.columns if str(each).replace(" ", "_") == name]
            name = alike[0] if len(alike) == 1 else name
        if column.source == 0 and name in frame.columns:
            found = frame[name]
            if found.ndim > 1:
                raise InputError(f"the frame has several columns {shown(column.name)}.")
            return found
        if column.source == 0 and not isinstance(column.name, int) and not column.name.startswith("column "):
            raise InputError(f"the column {shown(column.name)} is missing; the frame has {_names(frame)}.")
        if column.index < frame.shape[1]:
            return frame.iloc[:, column.index]
    elif column.index < frame.shape[1]:
        return frame[:, column.index]
    raise InputError(f"there are {frame.shape[1]} columns, and {column.name} has to be one.")


def _names(frame: Any) -> str:
    names = ", ".join(shown(each) for each in frame.columns[:12])
    return f"{names}, and {len(frame.columns) - 12} more" if len(frame.columns) > 12 else names or "none"


def _number(frame: Any, column: Column) -> NDArray[np.float64]:
    values = column_of(frame, column)
    try:
        found: NDArray[np.float64] = pd.to_numeric(pd.Series(values)).to_numpy(np.float64, na_value=np.nan)
    except (ValueError, TypeError) as error:
        text = f"the column {shown(column.name)} has to hold numbers: it is {values.dtype}."
        if isinstance(values.dtype, pd.CategoricalDtype):
            text += " Trees that were trained on pandas' categories take an OrdinalEncoder before them instead."
        raise InputError(text) from error
    if column.kind == "number":
        if column.strict and np.isnan(found).any():
            raise InputError(f"the column {shown(column.name)} has NaN, which the pipeline does not take.")
        if column.finite and np.isinf(found).any():
            raise InputError(f"the column {shown(column.name)} has an infinite number.")
    return found


def _codes(frame: Any, column: Column) -> NDArray[np.int64]:
    if column.kind == "bucket":
        return bucket_codes(_number(frame, column), column.keys)
    values = column_of(frame, column)
    found = codes(values, column.keys)
    unseen = found == len(column.keys)
    refused = column.strict or (bool(column.keys) and isinstance(column.keys[0], str))  # texts are unseen numbers
    if refused and unseen.all() and len(found) and _of_other_type(values, column.keys):
        raise InputError(
            f"the column {shown(column.name)} is {values.dtype}, and its categories were "
            f"{'text' if isinstance(column.keys[0], str) else 'numbers'}."
        )
    if column.strict and unseen.any():
        value = np.asarray(pd.Series(values), object)[np.flatnonzero(unseen)[0]]
        raise InputError(
            f"the column {shown(column.name)} has the unseen category {shown(value)}, and its encoder refuses them: "
            'fit it with handle_unknown="ignore".'
        )
    return found


def _of_other_type(values: Any, categories: Sequence[Any]) -> bool:
    known = {isinstance(each, str) for each in categories if each is not None}
    given = {isinstance(each, str) for each in pd.unique(pd.Series(values).dropna())}
    return bool(given and known) and not given & known
