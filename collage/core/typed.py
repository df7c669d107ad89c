"""Reading plain values from a file with the types of annotations: dataclasses, tuples, numbers of 64 bits.

JSON from a file may hold anything. A value that passes here has the types of the annotations, so that later code need
not check them again. Whether the numbers make sense is checked elsewhere.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any, Literal, TypeVar

Value = TypeVar("Value")

_MOST = 2**63 - 1
"""The largest whole number."""
_LONGEST = 100
"""The most characters of a value that an error shows."""


class MalformedError(ValueError):
    """A value in a file is not what it should be; the message names its place."""


def parse_object(data: bytes) -> dict[str, Any]:
    """A JSON object. Raises ValueError for anything else."""
    try:
        found = json.loads(data)
    except RecursionError:
        raise MalformedError("it is nested too deeply") from None  # the cause is a thousand equal calls
    if not isinstance(found, dict):
        raise MalformedError("it is no object")
    return found


def typed(hint: type[Value], value: Any, names: Mapping[str, Any] | None = None) -> Value:
    """The value as an instance of the annotation ``hint``.

    Mappings become dataclasses and lists become tuples where the annotation asks for these. Whole numbers have 64 bits.
    In a value that is a dataclass already, the fields are checked. ``names`` gives the types that annotations mention
    and that their module does not import. Raises MalformedError.
    """
    try:
        found: Value = _typed(hint, value, "", names)
    except RecursionError:
        raise MalformedError("it is nested too deeply") from None  # the cause is a thousand equal calls
    return found


def shown(value: Any) -> str:
    """A value from a file for an error: short, and without characters that a terminal obeys."""
    text = ascii(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _typed(hint: Any, value: Any, where: str, names: Mapping[str, Any] | None) -> Any:
    plain = _PLAIN.get(hint)
    if plain is not None:
        return plain(value, where)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _dataclass(hint, value, where, names)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _union(arguments, value, where, names)
    if origin in (tuple, list, Sequence):
        return _sequence(origin, arguments, value, where, names)
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise _wrong(where, value, "an object")
        of = arguments[1]
        return {_text(key, where): _typed(of, each, f"{where}.{key}", names) for key, each in value.items()}
    if origin is Literal:
        if value not in arguments:
            raise _wrong(where, value, f"one of {', '.join(map(str, arguments))}")
        return value
    if isinstance(hint, type) and issubclass(hint, Enum):
        try:
            return hint(value)
        except ValueError as error:
            raise _wrong(where, value, f"a {hint.__name__}") from error
    raise TypeError(f"no values of {hint} are read from files")


def _whole(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -_MOST - 1 <= value <= _MOST:
        raise _wrong(where, value, "a whole number of 64 bits")
    return value


def _real(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _wrong(where, value, "a number")
    try:
        return float(value)
    except OverflowError as error:
        raise _wrong(where, value, "a number") from error


def _flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong(where, value, "true or false")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise _wrong(where, value, "text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _wrong(where, value, "text") from error
    return value


def _nothing(value: Any, where: str) -> None:
    if value is not None:
        raise _wrong(where, value, "null")


_PLAIN: Mapping[Any, Any] = {
    int: _whole,
    float: _real,
    bool: _flag,
    str: _text,
    type(None): _nothing,
}


def _dataclass(hint: type, value: Any, where: str, names: Mapping[str, Any] | None) -> Any:
    hints = _hints(hint, tuple((names or {}).items()))
    if isinstance(value, hint):
        for name, of in hints.items():
            _typed(of, getattr(value, name), f"{where}.{name}", names)
        return value
    if not isinstance(value, Mapping):
        raise _wrong(where, value, f"a {hint.__name__}")
    unknown = value.keys() - hints.keys()
    missing = [
        each.name
        for each in dataclasses.fields(hint)
        if each.default is dataclasses.MISSING
        and each.default_factory is dataclasses.MISSING
        and each.name not in value
    ]
    if unknown or missing:
        what = f"has no {missing[0]}" if missing else f"has {shown(min(unknown))} beside what is known"
        raise MalformedError(f"{_place(where)} {what}")
    return hint(
        **{
            name: _typed(of, value[name], f"{where}.{name}", names)
            for name, of in hints.items()
            if name in value
        }
    )


@cache
def _hints(hint: type, names: tuple[tuple[str, Any], ...]) -> Mapping[str, Any]:
    fields = {each.name for each in dataclasses.fields(hint)}
    found = typing.get_type_hints(hint, localns=dict(names))
    return {name: of for name, of in found.items() if name in fields}


def _union(arguments: tuple[Any, ...], value: Any, where: str, names: Mapping[str, Any] | None) -> Any:
    problem = None
    for each in arguments:
        try:
            return _typed(each, value, where, names)
        except MalformedError as error:
            # The error for the right kind names the innermost place, so its text is the longest.
            if problem is None or len(str(error)) > len(str(problem)):
                problem = error
    raise problem or _wrong(where, value, "nothing")


def _sequence(
    origin: Any, arguments: tuple[Any, ...], value: Any, where: str, names: Mapping[str, Any] | None
) -> Any:
    if not isinstance(value, (list, tuple)):
        raise _wrong(where, value, "a list")
    open_ended = origin is not tuple or arguments[-1] is Ellipsis
    if not open_ended and len(value) != len(arguments):
        raise _wrong(where, value, f"a list of {len(arguments)}")
    kinds = [arguments[0]] * len(value) if open_ended else arguments
    found = [
        _typed(of, each, f"{where}.{i}", names) for i, (of, each) in enumerate(zip(kinds, value, strict=True))
    ]
    return found if origin is list else tuple(found)


def _wrong(where: str, value: Any, wanted: str) -> MalformedError:
    return MalformedError(f"{_place(where)} is {shown(value)}, not {wanted}")


def _place(where: str) -> str:
    return ascii(where.lstrip("."))[1:-1] or "it"
