"""The open table of converters: what makes a differentiable part of a fitted operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from collage.errors import RegistrationError
from collage.windtunnel.modules.part import Part

Converter: TypeAlias = Callable[[Any, int], "Part | tuple[Part, ...]"]
"""It takes a fitted operator and the number of columns that come in, and gives the part, or a chain of parts."""

_own: dict[str, Converter] = {}


def register_converter(operator: type | str, *, replace: bool = False) -> Callable[[Converter], Converter]:
    """A decorator that registers a converter for a class, or for its name, ``sklearn.svm._classes.LinearSVC``.

    A short name, ``LinearSVC``, stands for the class in any module. Raises RegistrationError if there is one already.
    """
    name = operator if isinstance(operator, str) else f"{operator.__module__}.{operator.__qualname__}"

    def register(converter: Converter) -> Converter:
        if name in _own and not replace:
            raise RegistrationError(f"{name} has a converter already: give replace=True to replace it.")
        _own[name] = converter
        return converter

    return register


def converter_of(operator: Any, built_in: Mapping[str, Converter]) -> Converter | None:
    """The converter of an operator, by its class or the first class it inherits from that has one."""
    for each in type(operator).__mro__:
        for name in (f"{each.__module__}.{each.__qualname__}", each.__qualname__):
            for table in (_own, built_in):
                if name in table:
                    return table[name]
    return None


def registered() -> Mapping[str, Converter]:
    """The converters of users."""
    return MappingProxyType(_own)
