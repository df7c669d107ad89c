"""Sensitivities: how much of an error in a value inside the model is left in its outputs.

ONNX Runtime runs the model with noise added to values, as large in each element's scale as errors of kernels are (see
``scales``), and the outputs are compared with those of a run without noise. There is one run for each group of values
that follow each other, and not one for each value: neighbours are about as sensitive, and noises are independent, so
that they add up in quadrature. The last values have runs of their own: where the outputs depend on few numbers most,
their errors count many times as much as those of their neighbours.

There are two kinds of noise. That of products is about as large in all elements of a scale. That of rounding is largest
in the largest elements, which often count most: the likeliest class has the largest score.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from collage.check.accuracy import Accuracy, on_samples
from collage.check.scales import scales
from collage.core.deadline import Check, endless
from collage.frontend.model import Model
from collage.frontend.probe import Probe, batches, next_named, value_names
from collage.graph.dataflow import Array
from collage.measure_db.database import Database, Json
from collage.measure_db.keys import Fact

_EDITION = 3
"""The edition of measuring sensitivities."""
_SAMPLES = 4
"""Sensitivities are the largest ones of so many samples. If few numbers of the outputs count, noise may cancel."""
NOISE = 4e-3
"""The largest noise of an element, in its scale: half of the last bit of a bfloat16 number."""
GROUPS = 24
"""The most groups of values."""
_ALONE = 0.25
"""The share of the groups that are the last values, one at a time."""
_RUNS = 4
"""The least number of runs with noise for each group, by turns of both kinds."""
Compare = Callable[[Sequence[Array], Sequence[Array]], float]
"""The error of outputs (first) in units of their scale, given what is expected of them (second)."""


def _write(found: Mapping[int, float]) -> Json:
    return {str(value): share for value, share in found.items()}


def _read(value: Any) -> Mapping[int, float]:
    return {int(number): float(share) for number, share in value.items()}


_SENSITIVITIES: Fact[Mapping[int, float]] = Fact("sensitivities", _write, _read)


def sensitivities_on_samples(
    model: Model,
    values: Sequence[int],
    digest: str | None,
    accuracy: Accuracy,
    database: Database,
    check: Check,
) -> Mapping[int, float]:
    """The sensitivities of values, measured or recalled. ``digest`` is that of the model as it was loaded."""

    def look() -> Mapping[int, float]:
        samples = accuracy.inputs[:_SAMPLES]
        found = sensitivities(model, values, samples, accuracy.of_floats, check)
        return {value: float(f"{share:.4g}") for value, share in found.items()}

    return on_samples(_SENSITIVITIES, look, accuracy, database, (digest, values, _EDITION))


@dataclass(frozen=True)
class _Named:
    """A value of the graph that has a name in the ONNX model, and the values that have its sensitivity."""

    value: int
    alike: tuple[int, ...]


def sensitivities(
    model: Model,
    values: Collection[int],
    samples: Sequence[Sequence[Array]],
    compare: Compare,
    check: Check = endless,
) -> dict[int, float]:
    """The outputs' error for each unit of error in the values, by value; the largest one of the samples.

    ``samples`` are inputs in the model's order. A value that is inside an ONNX node has the sensitivity of what the
    node makes of it. Values about which nothing can be found out are left out. Raises whatever ONNX Runtime raises, and
    what ``check`` raises, which is called before each run.
    """
    names = {v: name for v, name in value_names(model).items() if v not in model.graph.inputs}
    named = _named(model, values, names)
    if not named:
        return {}
    probe = Probe(model, {each.value: names[each.value] for each in named}, noisy=True)
    rounds = [*batches(model, _groups(named), lambda group: (each.value for each in group))]
    found: dict[int, float] = {}
    for number in range(max(_RUNS, len(samples)) if samples else 0):
        inputs, make = samples[number % len(samples)], _KINDS[number % len(_KINDS)]
        check()
        expected = probe.run(inputs, {})
        rng = np.random.default_rng(number)
        for groups in rounds:
            check()
            exact = probe.values(inputs, [each.value for group in groups for each in group])
            for group in groups:
                check()
                noise = {each.value: make(exact.pop(each.value), rng) for each in group}
                error = compare(probe.run(inputs, noise), expected)
                if not math.isfinite(error):
                    continue
                share = error / (NOISE * math.sqrt(len(group)))
                for value in (v for each in group for v in each.alike):
                    found[value] = max(share, found.get(value, 0.0))
    return found


def _of_products(array: Array, rng: np.random.Generator) -> Array:
    """Normal noise in each element's scale, whose largest one is ``NOISE``."""
    drawn = rng.standard_normal(array.shape, np.float32)
    most = float(np.abs(drawn).max(initial=0.0))
    noise: Array = (drawn * scales(array) * (NOISE / most if most > 0 else 0.0)).astype(np.float32)
    return noise


def _of_rounding(array: Array, rng: np.random.Generator) -> Array:
    """Even noise of at most ``NOISE`` times the element itself."""
    drawn: Any = rng.uniform(-NOISE, NOISE, array.shape)
    noise: Array = (drawn * array).astype(np.float32)
    return noise


_KINDS = (_of_products, _of_rounding)


def _groups(named: Sequence[_Named]) -> Iterator[Sequence[_Named]]:
    """At most ``GROUPS`` groups of neighbours, of about equal size, and the last values alone."""
    alone = int(_ALONE * GROUPS) if len(named) > GROUPS else 0
    together = len(named) - alone
    count = min(GROUPS - alone, together)
    bounds = [round(k * together / count) for k in range(count + 1)]
    for begin, end in pairwise([*bounds, *range(together + 1, len(named) + 1)]):
        yield named[begin:end]


def _named(model: Model, values: Collection[int], names: Mapping[int, str]) -> list[_Named]:
    """The values with names that stand for these values, in the order of their producers."""
    graph = model.graph
    stands: dict[int, list[int]] = {}
    for value in values:
        found = next_named(model, value, names)
        if found is not None:
            stands.setdefault(found, []).append(value)
    order = sorted(stands, key=lambda value: graph.values[value].producer or 0)
    return [_Named(value, tuple(stands[value])) for value in order]
