"""Reading plain values from a file with the types of annotations: dataclasses, tuples, numbers of 64 bits.

JSON from a file may hold anything. A value that passes here has the types of the annotations, so that later code need
not check them again. Whether the numbers make sense is checked elsewhere.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cache
from itertools import repeat
from typing import Any, Literal, TypeAlias, TypeVar, cast

Value = TypeVar("Value")

_MOST = 2**63 - 1
"""The largest whole number."""
_LONGEST = 100
"""The most characters of a value that an error shows."""


_Read: TypeAlias = "Callable[[Any], Any]"
"""Gives the value with the type of an annotation, or raises _Misfit."""
_Names: TypeAlias = "tuple[tuple[str, Any], ...]"


class MalformedError(ValueError):
    """A value in a file is not what it should be; the message names its place."""


class _Misfit(Exception):
    """A value is not what it should be. What reads its surroundings adds their names, from the inside out."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
        self.inside: list[str] = []

    @property
    def place(self) -> str:
        """The value's place, as ``nodes.3.name``."""
        return ascii(".".join(reversed(self.inside)))[1:-1] or "it"


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
    read: _Read = _reader(cast(Any, hint), tuple((names or {}).items()))
    try:
        found: Value = read(value)
    except _Misfit as misfit:
        raise MalformedError(f"{misfit.place} {misfit.text}") from None
    except RecursionError:
        raise MalformedError("it is nested too deeply") from None  # the cause is a thousand equal calls
    return found


def shown(value: Any) -> str:
    """A value from a file for an error: short, and without characters that a terminal obeys."""
    text = ascii(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


@cache
def _reader(hint: Any, names: _Names) -> _Read:
    """What reads values of an annotation. It is made once: a module's file has a hundred thousand values."""
    if hint in _PLAIN:
        return _PLAIN[hint]
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _dataclass(hint, names)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _union([_reader(each, names) for each in arguments])
    if origin in (tuple, list, Sequence):
        of = [_reader(each, names) for each in arguments if each is not Ellipsis]
        fixed = origin is tuple and Ellipsis not in arguments
        return _sequence(of if fixed else of[0], list if origin is list else tuple)
    if origin in (dict, Mapping):
        return _mapping(_reader(arguments[1], names))
    if origin is Literal:
        return _literal(arguments)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _member(hint)
    raise TypeError(f"no values of {hint} are read from files")


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -_MOST - 1 <= value <= _MOST:
        raise _wrong(value, "a whole number of 64 bits")
    return value


def _real(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _wrong(value, "a number")
    try:
        return float(value)
    except OverflowError as error:
        raise _wrong(value, "a number") from error


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _wrong(value, "true or false")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong(value, "text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _wrong(value, "text") from error
    return value


def _nothing(value: Any) -> None:
    if value is not None:
        raise _wrong(value, "null")


_PLAIN: Mapping[Any, _Read] = {
    int: _whole,
    float: _real,
    bool: _flag,
    str: _text,
    type(None): _nothing,
}


def _dataclass(hint: type, names: _Names) -> _Read:
    found: dict[str, _Read] = {}
    needed = [
        each.name
        for each in dataclasses.fields(hint)
        if each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
    ]

    def read(value: Any) -> Any:
        if not found:  # later than the reader itself, since a class may mention itself
            found.update({name: _reader(of, names) for name, of in _hints(hint, names).items()})
        given = isinstance(value, hint)
        if not given and not isinstance(value, Mapping):
            raise _wrong(value, f"a {hint.__name__}")
        content = {name: getattr(value, name) for name in found} if given else value
        missing = next((name for name in needed if name not in content), None)
        if missing is not None:
            raise _Misfit(f"has no {missing}")
        if not content.keys() <= found.keys():
            raise _Misfit(f"has {shown(min(content.keys() - found.keys()))} beside what is known")
        name = ""
        try:
            fields = {}
            for name, of in found.items():
                if name in content:
                    fields[name] = of(content[name])
        except _Misfit as misfit:
            misfit.inside.append(name)
            raise
        return value if given else hint(**fields)

    return read


def _hints(hint: type, names: _Names) -> Mapping[str, Any]:
    fields = {each.name for each in dataclasses.fields(hint)}
    found = typing.get_type_hints(hint, localns=dict(names))
    return {name: of for name, of in found.items() if name in fields}


def _union(readers: Sequence[_Read]) -> _Read:
    def read(value: Any) -> Any:
        problem = None
        for each in readers:
            try:
                return each(value)
            except _Misfit as misfit:
                # The error for the right kind names the innermost place, so its text is the longest.
                if problem is None or len(misfit.place + misfit.text) > len(problem.place + problem.text):
                    problem = misfit
        raise problem or _wrong(value, "nothing")

    return read


def _sequence(of: _Read | Sequence[_Read], make: type) -> _Read:
    """Reads a list of any length by one reader, or a list with a reader for each value."""

    def read(value: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            raise _wrong(value, "a list")
        if not callable(of) and len(value) != len(of):
            raise _wrong(value, f"a list of {len(of)}")
        found: list[Any] = []
        try:
            for read_one, each in zip(repeat(of) if callable(of) else of, value, strict=False):
                found.append(read_one(each))  # its length is the place of an error
        except _Misfit as misfit:
            misfit.inside.append(str(len(found)))
            raise
        return make(found)

    return read


def _mapping(of: _Read) -> _Read:
    def read(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise _wrong(value, "an object")
        key = ""
        try:
            found = {}
            for key, each in value.items():
                found[_text(key)] = of(each)
        except _Misfit as misfit:
            misfit.inside.append(str(key))
            raise
        return found

    return read


def _literal(choices: Sequence[Any]) -> _Read:
    def read(value: Any) -> Any:
        if value not in choices:
            raise _wrong(value, f"one of {', '.join(map(str, choices))}")
        return value

    return read


def _member(kind: type[Enum]) -> _Read:
    def read(value: Any) -> Any:
        try:
            return kind(value)
        except ValueError:
            raise _wrong(value, f"a {kind.__name__}") from None

    return read


def _wrong(value: Any, wanted: str) -> _Misfit:
    return _Misfit(f"is {shown(value)}, not {wanted}")
