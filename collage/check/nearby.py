"""Outputs of a model for numbers that differ in their last bits: how exact its results can be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from collage.check.compare import (
    changed_by_steps,
    in_even_steps,
    is_inexact,
    is_tolerable,
    slightly_changed,
)
from collage.frontend.read.apart import with_changed
from collage.frontend.read.proto_size import about_bytes
from collage.frontend.read.weights import WeightFiles
from collage.graph.dataflow import Array

_RUNS = 4
"""The number of runs on changed inputs. One alone may change the outputs little by chance."""
_RUNS_OF_WEIGHTS = 2
"""The number of runs with changed weights. Each of them loads the model once more."""
_RUNS_OF_BOTH = 8
"""The same with changed inputs, too. An output that is all that a slice has, such as the only one that ReLU leaves of a
channel, is judged by these runs alone. With four of them one of 25 such outputs would be taken for wrong, by chance."""
_MOST_BYTES = 256 << 20
"""The largest model whose weights are changed beside its inputs. A larger one takes seconds to load."""

Run = Callable[[onnx.ModelProto, Mapping[str, Array]], list[Any]]
"""Runs a model on inputs by name, and returns its outputs in order."""


def nearby_outputs(
    model: onnx.ModelProto, feeds: Mapping[str, Array], run: Run, precision: str = "", *, steps: bool = False
) -> Iterator[list[Any]]:
    """Outputs of the model for inputs that are changed in their last bits, one list of arrays for each run.

    With a reduced ``precision`` they are changed as much as rounding to it does, and the weights are changed with them,
    since a kernel of that precision rounds them, too. With ``steps``, inputs are changed as even steps of 8 bits do,
    where the precision has these: a large number costs those beside it their digits. Where no input holds
    floating-point numbers only the weights are changed.
    """
    rng = np.random.default_rng(0)

    def changed(array: Array) -> Array:
        even = steps and in_even_steps(precision)
        return changed_by_steps(array, rng) if even else slightly_changed(array, rng, precision)

    def slightly(array: Array) -> Array:
        return slightly_changed(array, rng, precision)

    def around() -> dict[str, Array]:
        return {name: changed(array) for name, array in feeds.items()}

    if not any(map(is_inexact, feeds.values())):
        for _ in range(_RUNS_OF_WEIGHTS):
            with WeightFiles() as files:
                yield run(with_changed(model, slightly, files), feeds)
    elif precision and about_bytes(model) <= _MOST_BYTES:
        for _ in range(_RUNS_OF_BOTH):
            with WeightFiles() as files:
                yield run(with_changed(model, slightly, files), around())
    else:
        for _ in range(_RUNS):
            yield run(model, around())


def as_good_as_can_be(
    actual: Array,
    expected: Array,
    allowed: float,
    nearby: Sequence[Array],
    precise: Callable[[], Any],
    *,
    channels_first: bool,
    precision: str = "",
) -> bool:
    """Whether an output that is off by more than ``allowed`` is still as good as can be expected.

    ``nearby`` are outputs for inputs that differ in their last bits; they tell how exact the output can be. ``precise``
    computes the output in float64 arithmetic, or returns None. It decides where the reference may be the worse one.
    ``precision`` is as in ``is_tolerable``.
    """
    if is_tolerable(actual, expected, allowed, nearby, channels_first=channels_first, precision=precision):
        return True
    judge = precise()
    if judge is None:
        return False
    judge = np.asarray(judge).astype(actual.dtype)
    around = [*nearby, expected]
    return is_tolerable(actual, judge, allowed, around, channels_first=channels_first, precision=precision)
