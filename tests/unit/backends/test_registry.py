"""A backend may be registered again, if that is said."""

from __future__ import annotations

import pytest

import collage
from collage.backends.registry import Registry, builtin_registry
from collage.errors import RegistrationError
from collage.graph.formats import Plain
from tests.helpers.planted import Right


class Again(Right):
    def formats(self) -> list[collage.StorageFormat]:
        return [Plain("mine")]


def test_a_name_is_taken_unless_it_is_to_be_replaced() -> None:
    registry = Registry()
    registry.register(Again())
    with pytest.raises(RegistrationError, match=r"is taken by Again; choose another, or .* replace=True"):
        registry.register(Right())
    second = Again()
    registry.register(second, replace=True)  # its format's name is no other backend's
    assert registry["right"] is second
    assert registry.names == ("right",)


def test_added_rules_stay_with_the_name() -> None:
    registry = Registry()
    registry.register(Right())
    rule = collage.BasePatternRule()
    registry.patterns.add_rule("right", rule)
    registry.register(Right(), replace=True)
    assert registry.patterns.sources("right") == (rule,)


def test_what_is_no_backend_replaces_nothing() -> None:
    registry = Registry()
    first = Right()
    registry.register(first)
    wrong = type("Wrong", (Right,), {"kind": "library"})()
    with pytest.raises(RegistrationError, match="kind is"):
        registry.register(wrong, replace=True)
    assert registry["right"] is first


def test_the_views_are_not_replaced() -> None:
    registry = builtin_registry(with_entry_points=False)
    view = type("View", (Right,), {"name": "view"})()
    with pytest.raises(RegistrationError, match="Collage's own"):
        registry.register(view, replace=True)
