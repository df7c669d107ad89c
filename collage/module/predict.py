"""Predictions of tables: rows as libraries and people have them, in the dtypes of a module's inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from collage.errors import InputError
from collage.graph.dataflow import Array, np_dtype
from collage.graph.value_type import STRING
from collage.runtime.inputs import listing
from collage.schedule.program import Port
from collage.schedule.suffix import ValuePort


def table_inputs(ports: Sequence[Port | ValuePort], table: Any, columns: Sequence[str] = ()) -> dict[str, Any]:
    """The inputs by name: an array, nested lists or a DataFrame for one, or the columns of a DataFrame or a mapping.

    If the only input has named ``columns``, these are taken by name, unless a DataFrame has none of the names.
    Numbers are converted to the inputs' dtypes. Raises InputError for what is no table, for texts in the place of
    numbers, and for numbers that an integer dtype does not hold.
    """
    has_columns = isinstance(table, Mapping) or hasattr(table, "columns")
    if columns and has_columns and ports[0].name not in table and any(name in table for name in columns):
        if absent := [name for name in columns if name not in table]:
            raise InputError(f"the table lacks columns: {', '.join(absent)}.")
        return {ports[0].name: np.stack([_array(ports[0], table[name]).reshape(-1) for name in columns], 1)}
    if len(ports) == 1 and not (has_columns and ports[0].name in table):
        if isinstance(table, Mapping):
            raise InputError(f"missing input: {listing(ports)}.")
        return {ports[0].name: _array(ports[0], table)}
    if not has_columns:
        raise InputError(
            f"the model takes several inputs: give a DataFrame or a mapping with the columns {listing(ports)}."
        )
    if missing := [port for port in ports if port.name not in table]:
        raise InputError(f"the table lacks columns: {listing(missing)}.")
    return {port.name: _column(port, _array(port, table[port.name])) for port in ports}


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
