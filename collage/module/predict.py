"""Predictions of tables: rows as libraries and people have them, in the dtypes of a module's inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from collage.errors import InputError, UsageError
from collage.graph.dataflow import Array, np_dtype
from collage.graph.value_type import STRING
from collage.report.report import Report
from collage.runtime.inputs import listing
from collage.schedule.program import Port
from collage.schedule.suffix import ValuePort


def predicted(outputs: Mapping[str, Any], report: Report) -> Array:
    """The predictions among the outputs, as the model's library gives them."""
    found = as_array(outputs[report.predictions.get("predict", next(iter(outputs)))])
    found = found.reshape(-1) if found.shape[1:] == (1,) else found
    return found.astype(report.label_dtype) if report.label_dtype else found


def probabilities(report: Report) -> str:
    """The name of the output with probabilities. Raises UsageError if there is none."""
    if "predict_proba" not in report.predictions:
        raise UsageError(f"{report.model} has no probabilities: use predict, or run for all outputs.")
    return report.predictions["predict_proba"]


def table_inputs(ports: Sequence[Port | ValuePort], table: Any, columns: Sequence[str] = ()) -> dict[str, Any]:
    """The inputs by name: an array, nested lists or a DataFrame for one, or the columns of a DataFrame or a mapping.

    If the only input has named ``columns``, these are taken by name, unless a DataFrame has none of the names.
    Numbers are converted to the inputs' dtypes. Raises InputError for what is no table, for texts in the place of
    numbers, and for numbers that an integer dtype does not hold.
    """
    first, is_mapping = ports[0], isinstance(table, Mapping)
    given = _by_text(table) if is_mapping or hasattr(table, "columns") else {}
    if len(ports) > 1:
        if not given:
            names = listing(ports)
            raise InputError(f"the model takes several inputs: give a DataFrame or a mapping with the columns {names}.")
        if missing := [port for port in ports if port.name not in given]:
            raise InputError(f"the table lacks columns: {listing(missing)}.")
        return {port.name: _column(port, _array(port, _one(table, given, port.name))) for port in ports}
    whole = is_mapping and first.name in given
    if any(name in given for name in columns) and not (whole and len(given) < len(columns)):
        return {first.name: _side_by_side(first, table, given, columns)}
    if whole:
        return {first.name: _array(first, table[first.name])}
    if is_mapping:
        raise InputError(f"missing input: {listing(ports)}.")
    if categorical := [name for name, keys in given.items() if _is_categorical(table, keys[0])]:
        raise _categorical(categorical[0])
    return {first.name: _array(first, table)}


def _by_text(table: Any) -> dict[str, list[Any]]:
    """The names of columns by their texts. A name with blanks is there with lines below, too, as LightGBM writes it."""
    found: dict[str, list[Any]] = {}
    for name in table if isinstance(table, Mapping) else table.columns:
        found.setdefault(str(name), []).append(name)
    lined: dict[str, list[Any]] = {}
    for text, names in found.items():
        lined.setdefault(text.replace(" ", "_"), []).extend(names)
    return {**lined, **found}


def _one(table: Any, given: Mapping[str, Sequence[Any]], name: str) -> Any:
    """The column of that name. Raises InputError if several have it, or it cannot be read."""
    if len(given[name]) > 1:
        raise InputError(f"the table has several columns {name}.")
    try:
        return table[given[name][0]]
    except Exception as error:  # other libraries raise anything
        raise InputError(f"column {name} cannot be read: {error}") from error


def _side_by_side(
    port: Port | ValuePort, table: Any, given: Mapping[str, Sequence[Any]], columns: Sequence[str]
) -> Array:
    """The columns as one array."""
    if missing := [name for name in columns if name not in given]:
        raise InputError(f"the table lacks columns: {', '.join(missing)}.")
    found = []
    for name in columns:
        column = _one(table, given, name)
        if _is_categorical(table, given[name][0]):
            raise _categorical(name)
        found.append(_array(port, column).reshape(-1))
    if len({len(each) for each in found}) > 1:
        raise InputError("the columns of the table have different numbers of rows.")
    return np.stack(found, 1)


def _is_categorical(table: Any, name: Any) -> bool:
    """Whether a column of a DataFrame has categories, of which libraries take the codes or the values."""
    kinds = getattr(table, "dtypes", None)
    if kinds is None:
        return False
    kind = kinds[list(table.columns).index(name)] if isinstance(kinds, (list, tuple)) else kinds[name]
    return str(kind).startswith(("category", "Categorical", "Enum"))


def _categorical(name: str) -> InputError:
    return InputError(
        f"column {name} is categorical, and the model takes numbers: give the codes of the categories it was trained "
        f"with (in pandas table[{name!r}].cat.codes, NaN for -1), or their values."
    )


def as_array(values: Any) -> Array:
    """Predictions as an array: a row for each of several maps from classes to numbers."""
    if isinstance(values, (list, tuple)):
        rows = [[*each.values()] for each in values]
        return np.array(rows, np.float32) if rows else np.zeros((0, 0), np.float32)
    return np.asarray(values)


def _column(port: Port | ValuePort, array: Array) -> Array:
    """The array with as many axes as the input has, if it is one column."""
    rank = len(port.type.shape or ())
    if array.ndim == 1 and rank == 2:
        return array.reshape(-1, 1)
    return array.reshape(-1) if rank == 1 and array.shape[1:] == (1,) else array


def _array(port: Port | ValuePort, given: Any) -> Array:
    try:
        for name in ("toarray", "to_numpy"):  # a sparse matrix, and a DataFrame or one of its columns
            given = getattr(given, name)() if hasattr(given, name) else given
        array = np.asarray(given)
    except Exception as error:  # other libraries raise anything
        raise InputError(f"input {port.name} is no table: {error}") from error
    if port.type.dtype == STRING:
        return array.astype(object)
    texts = (each for each in array.flat if isinstance(each, (str, bytes))) if array.dtype.kind == "O" else ()
    text = next(iter(texts), None)
    if text is not None or array.dtype.kind not in "biufO":
        example = f", such as {text!r}" if text is not None else ""
        raise InputError(f"input {port.name} has elements that are no numbers of type {port.type.dtype}{example}.")
    wanted = np_dtype(port.type.dtype)
    try:
        array = array.astype(np.float64) if array.dtype.kind == "O" else array
        with np.errstate(over="ignore", invalid="ignore"):
            found: Array = array.astype(wanted)
    except (TypeError, ValueError) as error:
        raise InputError(f"input {port.name} has elements that are no numbers of type {wanted}: {error}") from error
    if wanted.kind in "biu" and not np.array_equal(found, array):
        raise InputError(f"input {port.name} has numbers that {wanted} does not hold.")
    return found
