"""What an ONNX operator is in PyTorch: a function of tensors, and which inputs it takes as numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["Operator", "Table", "plain"]


@dataclass(frozen=True)
class Operator:
    """``run`` takes the operator's inputs, with None for those that are left out, and its attributes by name.

    Inputs at the positions ``numbers`` have to be constants, and come as lists of numbers.
    """

    run: Callable[..., Any]
    numbers: tuple[int, ...] = ()


Table: TypeAlias = "Mapping[str, Operator]"
"""Operators by their ONNX names."""


def plain(functions: Mapping[str, Callable[..., Any]]) -> Table:
    """Operators that take tensors only."""
    return {name: Operator(run) for name, run in functions.items()}
