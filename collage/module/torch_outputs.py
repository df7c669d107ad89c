"""Outputs as tensors of PyTorch, for callers who give some."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from collage.graph.torch_tensors import is_tensor, tensor_of


def holds_tensor(args: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Whether an input, by position or by name, is a tensor of PyTorch, or a list with one."""
    if "torch" not in sys.modules:
        return False
    given = [*args, *named.values()]
    if len(given) == 1 and isinstance(given[0], Mapping):
        given = [*given[0].values()]
    return any(any(map(is_tensor, each)) if isinstance(each, (list, tuple)) else is_tensor(each) for each in given)


def as_tensors(values: Iterable[Any]) -> list[Any]:
    """The outputs as tensors on the same memory. What PyTorch has no dtype for, such as text, stays as it is."""
    return [_as_tensor(each) for each in values]


def _as_tensor(value: Any) -> Any:
    if isinstance(value, list):
        return as_tensors(value)
    if not isinstance(value, (np.ndarray, np.generic)):
        return value
    array = np.asarray(value)
    try:
        return tensor_of(array if array.flags.writeable else array.copy())
    except TypeError:
        return value
