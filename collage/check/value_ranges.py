"""Ranges of values inside a model: what ONNX Runtime finds on samples, from the least number to the largest one.

Backends may offer to store such values in 8 bits, if the samples are the user's. Numbers beyond the range are cut. Two
ranges are found of each value. One has all numbers, and one leaves out the largest magnitudes, 1 in 10,000 of
them, so that steps of 8 bits are finer for the others. Which one is the better is seen on the samples, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from collage.check.accuracy import Accuracy, on_samples
from collage.check.scales import scales
from collage.core.deadline import Check, Deadline, endless
from collage.frontend.model import Model
from collage.frontend.probe import Probe, batches, value_names
from collage.graph.dataflow import Array, TensorType
from collage.graph.ranges import Range, shared
from collage.graph.storage import PLAIN
from collage.measure_db.database import Database, Json
from collage.measure_db.keys import Fact

QUANTILE = 0.9999
"""The share of magnitudes that the narrower range has."""
_CHECKED = 2
"""So many samples tell which range is the better."""
_LOOKED_AT = 1 << 16
"""A quantile is taken of so many numbers of a sample."""


def _write(found: Mapping[int, Range]) -> Json:
    return {str(value): [each.low, each.high, each.seen] for value, each in found.items()}


def _read(value: Any) -> Mapping[int, Range]:
    return {int(number): Range(*map(float, each)) for number, each in value.items()}


_RANGES: Fact[Mapping[int, Range]] = Fact("value_ranges", _write, _read)
_EDITION = 2
"""The edition of finding ranges."""


def ranges_on_samples(
    model: Model, digest: str | None, accuracy: Accuracy, database: Database, deadline: Deadline
) -> Mapping[int, Range]:
    """The ranges of values on the samples, found or recalled. ``digest`` is that of the model as it was loaded."""

    def look() -> Mapping[int, Range]:
        by_largest = accuracy.asked.metric.is_max
        return value_ranges(model, accuracy.inputs, by_largest=by_largest, check=deadline.check)

    about = (digest, sorted(model.opaque), _EDITION)
    return shared(model.graph, on_samples(_RANGES, look, accuracy, database, about))


def value_ranges(
    model: Model,
    samples: Sequence[Sequence[Array]],
    *,
    by_largest: bool = True,
    check: Check = endless,
) -> dict[int, Range]:
    """The ranges of float32 values with rows or channels that have names in the ONNX model.

    Of the two ranges of a value the one with the smaller error in the first samples is taken: the smaller largest error
    of an element in its scale where ``by_largest``, else the smaller root of the mean square. Raises whatever
    ONNX Runtime raises.
    """
    names = {
        v: name
        for v, name in value_names(model).items()
        if not model.graph.is_constant(v) and (kind := model.graph.type_of(v)).size and len(kind.shape) >= 2
    }
    whole: dict[int, Range] = {}
    narrow: dict[int, Range] = {}
    odd: set[int] = set()
    probe, groups = Probe(model, names), [*batches(model, names, lambda value: (value,))]
    for inputs in samples:
        check()
        for value, array in _values(probe, inputs, groups):
            low, high = float(array.min()), float(array.max())
            if not math.isfinite(high - low):
                odd.add(value)
                continue
            cut, seen = _quantile(array), max(-low, high)
            for found, each in (
                (whole, Range(low, high)),
                (narrow, Range(max(low, -cut), min(high, cut), seen)),
            ):
                found[value] = found[value].joined(each) if value in found else each
    errors: dict[int, list[float]] = {value: [0.0, 0.0] for value in whole}
    for inputs in samples[:_CHECKED]:
        check()
        for value, array in _values(probe, inputs, groups):
            if value in odd:
                continue
            for place, found in enumerate((whole, narrow)):
                error = _error(array, found[value], by_largest)
                errors[value][place] = max(errors[value][place], error)
    return {
        value: each if errors[value][0] <= errors[value][1] else narrow[value]
        for value, each in whole.items()
        if value not in odd
    }


def _values(
    probe: Probe, inputs: Sequence[Array], groups: Sequence[Sequence[int]]
) -> Iterator[tuple[int, Array]]:
    for group in groups:
        yield from probe.values(inputs, group).items()


def _quantile(array: Array) -> float:
    """The magnitude that a share ``QUANTILE`` of a part of the numbers is not above."""
    flat = np.abs(array.reshape(-1)[:: max(1, array.size // _LOOKED_AT)])
    place = min(flat.size - 1, int(QUANTILE * flat.size))
    return float(np.partition(flat, place)[place])


def _error(array: Array, found: Range, by_largest: bool) -> float:
    storage = found.storage(PLAIN)
    if storage is None:
        return math.inf
    kind = TensorType(array.shape, array.dtype.name)
    kept: Any = storage.format.restore(storage.format.store(array), kind)
    relative = (kept - array) / scales(array, channels_first=True)
    return float(np.abs(relative).max() if by_largest else np.sqrt(np.mean(np.square(relative))))
