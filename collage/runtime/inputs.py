"""Checking a caller's inputs against those of the model."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from collage.errors import InputError, refuse_fixed
from collage.graph.dataflow import Array, np_dtype
from collage.graph.given_array import MismatchError, cast_hint, given_array
from collage.graph.value_type import STRING, TENSOR, ValueType
from collage.schedule.program import Port, Program
from collage.schedule.suffix import ValuePort

_NOTHING: Mapping[int, bytes] = {}


def collect_inputs(
    ports: Sequence[Port | ValuePort],
    args: Sequence[Any],
    named: Mapping[str, Any],
    assumed: Mapping[int, bytes] = _NOTHING,
    fixed: Collection[str] = (),
) -> list[Any]:
    """Values in the order of the ports, from positional and named arguments.

    Values are numpy arrays, objects with DLPack, nested lists, and what ValueType takes. A mapping as the only
    positional argument stands for named ones. Indices are those of the setting that is ``assumed``, by the inputs'
    values; the original model checks others. ``fixed`` are the names of inputs that the compile has fixed. Raises
    InputError, which names the input and what it should be.
    """
    values = in_order(ports, args, named, fixed)
    if not assumed:
        return [_checked(port, value) for port, value in zip(ports, values, strict=True)]
    found = [_typed(port, value) for port, value in zip(ports, values, strict=True)]
    if all(_is_assumed(port, each, assumed) for port, each in zip(ports, found, strict=True)):
        for port, each in zip(ports, found, strict=True):
            _check_indices(port, each)
    return found


def _is_assumed(port: Port | ValuePort, value: Any, assumed: Mapping[int, bytes]) -> bool:
    """Whether the value is the assumed one, if one is assumed."""
    wanted = assumed.get(port.value) if isinstance(port, Port) else None
    return wanted is None or value.tobytes() == wanted


def in_order(
    ports: Sequence[Port | ValuePort],
    args: Sequence[Any],
    named: Mapping[str, Any],
    fixed: Collection[str] = (),
) -> Sequence[Any]:
    """The values as they were given, in the order of the ports.

    Raises InputError for names that are unknown, missing or given twice.
    """
    if len(args) == 1 and isinstance(args[0], Mapping) and not named:
        named, args = args[0], ()
    if len(args) == len(ports) and not named:
        return args
    if not args and len(named) == len(ports) and all(port.name in named for port in ports):
        return [named[port.name] for port in ports]
    if len(args) > len(ports):
        raise InputError(f"{len(args)} inputs given, the model takes {len(ports)}: {listing(ports)}.")
    given: dict[str, Any] = {port.name: array for port, array in zip(ports, args, strict=False)}
    twice = sorted(set(given) & set(named))
    if twice:
        raise InputError(f"given both by position and by name: {', '.join(twice)}.")
    given.update(named)
    valid = [port.name for port in ports]
    unknown = sorted(set(given) - set(valid))
    if unknown:
        refuse_fixed(unknown, fixed)
        raise InputError(f"unknown input: {', '.join(unknown)}. The model takes: {listing(ports)}.")
    missing = [port for port in ports if port.name not in given]
    if missing:
        raise InputError(f"missing input: {listing(missing)}.")
    return [given[port.name] for port in ports]


def check_rows(ports: Sequence[Port | ValuePort], values: Sequence[Any]) -> int:
    """The number of rows of the inputs of a model that takes any. Raises InputError for different numbers."""
    rows = [len(each) for each in values]
    if len({*rows}) > 1:
        given = ", ".join(f"{port.name} {count}" for port, count in zip(ports, rows, strict=True))
        raise InputError(f"the inputs have different numbers of rows: {given}.")
    return rows[0]


def by_name(inputs: Any, named: Mapping[str, Any]) -> Mapping[str, Any]:
    """The inputs of ``run``: those of a mapping, if there is one, and keywords, one of which may be ``inputs``."""
    if inputs is None:
        return named
    return {**(inputs if isinstance(inputs, Mapping) else {"inputs": inputs}), **named}


def _checked(port: Port | ValuePort, value: Any) -> Any:
    found = _typed(port, value)
    if port.rows is not None:
        _check_indices(port, found)
    return found


def _typed(port: Port | ValuePort, value: Any) -> Any:
    if not isinstance(port, ValuePort):
        return _array(port.name, port.type.shape, port.type.dtype, value)
    kind = port.type
    if kind.kind == TENSOR and kind.dtype != STRING and kind.shape is not None and None not in kind.shape:
        return _array(port.name, extents(port), kind.dtype, value)
    try:
        found = value if _is_rows(kind, value) else kind.check(value)
    except MismatchError as error:
        raise InputError(f"input {port.name} {error}.") from error
    # Engines read memory row by row. An array of no axes is contiguous, and stays as it is.
    return np.ascontiguousarray(found) if isinstance(found, np.ndarray) and not found.flags.c_contiguous else found


def _is_rows(kind: ValueType, value: Any) -> bool:
    """Whether the value is an array of numbers of the type, whose first extent is open, as in most calls of tables."""
    if type(value) is not np.ndarray or kind.kind != TENSOR or not kind.shape or kind.dtype == STRING:
        return False
    fits = value.ndim == len(kind.shape) and value.shape[1:] == kind.shape[1:] and kind.shape[0] is None
    return fits and value.dtype == np_dtype(kind.dtype)


def _check_indices(port: Port | ValuePort, array: Any) -> None:
    """Raise InputError for an index out of range. ``port.rows`` may be one number for each column of the last axis."""
    rows, name = port.rows, port.name
    if rows is None or not isinstance(array, np.ndarray) or not array.size or array.dtype.kind not in "iu":
        return
    if isinstance(rows, tuple) and array.shape[-1:] != (len(rows),):
        rows = max(rows)
    columns = isinstance(rows, tuple)
    others = tuple(range(array.ndim - 1)) if columns else None
    lows, highs = np.atleast_1d(array.min(others)), np.atleast_1d(array.max(others))
    limits = rows if isinstance(rows, tuple) else (rows,)
    for column, (low, high, limit) in enumerate(zip(lows.tolist(), highs.tolist(), limits, strict=True)):
        if limit > 0 and (low < -limit or high >= limit):
            where = f" in column {column}" if columns else ""
            raise InputError(
                f"input {name} holds the index {low if low < -limit else high}{where}, which is out of range: its "
                f"table has {limit} rows. Give values from {-limit} to {limit - 1}."
            )


def _array(name: str, shape: tuple[int, ...], dtype: str, value: Any) -> Array:
    expected = np_dtype(dtype)
    if type(value) is np.ndarray and value.dtype == expected and value.shape == shape:
        return value
    try:
        array = given_array(value, expected)
    except MismatchError as error:
        raise InputError(f"input {name} {error}.") from error
    if array.shape != shape:
        raise InputError(
            f"input {name} has shape {_x(array.shape)}, the module was compiled for {_x(shape)}. "
            "Give that shape. Where the model leaves it open, a compile with --shape (shapes= in Python) takes another."
        )
    if array.dtype != expected:
        raise InputError(
            f"input {name} has dtype {array.dtype}, the model takes {expected}: "
            f"convert it with {cast_hint(value, expected.name)}."
        )
    return array


def _x(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def listing(ports: Sequence[Port | ValuePort]) -> str:
    """The names of the ports with their dtypes and shapes, for messages."""
    return ", ".join(f"{p.name} ({_about(p)})" for p in ports) or "no inputs"


def _about(port: Port | ValuePort) -> str:
    return str(port.type) if isinstance(port, ValuePort) else f"{port.type.dtype}, {_x(port.type.shape)}"


def extents(port: Port | ValuePort) -> tuple[int, ...]:
    """The port's shape (elements per axis), with -1 for an unknown extent."""
    return tuple(-1 if extent is None else extent for extent in port.type.shape or ())


def shapes_text(program: Program) -> str:
    """The shapes that a program is for, in the form of ``--shape``, such as ``ids:1x64 mask:1x64``."""
    return shape_arguments(
        [port.name for port in program.model_inputs], [extents(port) for port in program.model_inputs]
    )


def shape_arguments(names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> str:
    """Names and shapes in the form of ``--shape``, as a shell takes them."""
    pairs = zip(names, shapes, strict=True)
    return " ".join(shlex.quote(f"{name}:{'x'.join(map(str, shape))}") for name, shape in pairs)
