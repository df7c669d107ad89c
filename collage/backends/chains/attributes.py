"""Reading operators' attributes."""

from __future__ import annotations

from collage.graph.dataflow import Attr, Node

DATA_LAYOUTS = ("NCW", "NCHW", "NCDHW")
"""Relax's names for the order of a value's axes in the graph."""


def integers(value: Attr) -> tuple[int, ...]:
    """The numbers of an attribute that is one integer or several. Raises TypeError for any other one."""
    found = value if isinstance(value, tuple) else (value,)
    whole = tuple(each for each in found if isinstance(each, int))
    if len(whole) != len(found):
        raise TypeError(f"{value!r} are no integers")
    return whole


def number(node: Node, name: str, default: float | None = None) -> float:
    """The value of an attribute that is a real number. Raises TypeError for any other one."""
    value = node.attrs.get(name, default)
    if not isinstance(value, (int, float)):
        raise TypeError(f"{node.op}: {name} = {value!r} is no number")
    return float(value)


def paddings(node: Node, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The padding before and after each of ``rank`` spatial axes."""
    found = integers(node.attrs["padding"])
    found = found if len(found) == 2 * rank else found * (2 * rank // len(found))
    return found[:rank], found[rank:]
