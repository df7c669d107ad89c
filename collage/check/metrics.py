"""Metrics: what "at most this much error" means. Each one is a number that is 0 where outputs are equal."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from collage.errors import CollageError, UsageError, unknown_names
from collage.graph.dataflow import Array

Outputs: TypeAlias = "Mapping[str, Array]"
"""The outputs of a run by name."""
Measure: TypeAlias = Callable[[Outputs, Outputs], float]
"""The error of outputs (second), given those of the reference (first)."""

_FEWEST = 4
"""With fewer samples nothing is known of the spread of errors."""
_DEVIATIONS = 3.1
"""Of normal numbers, 999 of 1,000 are at most so many deviations above the mean; of few samples more are needed."""

MAX, OUTPUT, TOP1, COSINE = "max", "output", "top1", "cosine"
METRICS = (MAX, OUTPUT, TOP1, COSINE)


class MetricError(CollageError):
    """A metric of the user's raised an exception, or returned no number."""


@dataclass(frozen=True)
class Metric:
    """Tells how far outputs are from the reference's. ``own`` is the user's function; the others are known by name.

    - ``max``: the largest absolute difference over the scale of its element (see ``check.scales``).
    - ``output``: the largest absolute difference in an output over the largest magnitude of that output.
    - ``top1``: the share of decisions that differ; a decision is the index of the largest number along the last axis.
    - ``cosine``: 1 - the cosine of the angle between an output and the reference.

    The error of several samples is the largest one, but for ``top1``, where it is the share in all samples.
    """

    name: str = MAX
    own: Measure | None = None

    @property
    def is_max(self) -> bool:
        """Whether errors are in units of their elements' scales."""
        return self.name == MAX and self.own is None

    @property
    def is_predicted(self) -> bool:
        """Whether predictions are of it: it grows as errors inside the network do."""
        return self.name in (MAX, OUTPUT) and self.own is None

    @property
    def needs_samples(self) -> bool:
        """Whether it says nothing on made-up inputs."""
        return self.own is not None or self.name == TOP1

    def measured(self, expected: Outputs, actual: Outputs) -> float:
        """The error of one sample, by a metric other than ``max``. Raises MetricError."""
        if self.own is None:
            return _SHARES[self.name](expected, actual)
        try:
            found = float(self.own(dict(expected), dict(actual)))
        except Exception as error:  # the user's function raises anything
            text = str(error).partition("\n")[0]
            raise MetricError(f"the metric {self.name} raised {type(error).__name__}: {text}") from error
        if math.isnan(found):
            raise MetricError(f"the metric {self.name} returned NaN")
        return found

    def of_all(self, errors: Sequence[float]) -> float:
        """The error of several samples."""
        if self.name == TOP1 and self.own is None:
            return math.fsum(errors) / len(errors) if errors else 0.0
        return max(errors, default=0.0)

    def foreseen(self, errors: Sequence[float]) -> float:
        """The error that 999 of 1,000 other inputs stay below, by the samples' errors; at least their largest.

        The cube roots of errors are taken for normal. That holds for errors that are sums of many roundings, and nearly
        for errors that differ by a factor of a few. Of fewer than four samples the largest counts, and for ``top1``
        the share in all of them.
        """
        largest, count = self.of_all(errors), len(errors)
        if count < _FEWEST or not math.isfinite(largest) or (self.name == TOP1 and self.own is None):
            return largest
        roots = np.cbrt(errors)
        bound = roots.mean() + _DEVIATIONS * (1 + _FEWEST / count) * roots.std(ddof=1)
        return max(largest, float(bound**3))


def metric_of(given: str | Measure | None) -> Metric:
    """The metric of that name, or of a function. Raises UsageError."""
    if given is None:
        return Metric()
    if callable(given):
        return Metric(getattr(given, "__name__", type(given).__name__), given)
    if given not in METRICS:
        raise unknown_names("metric", [str(given)], METRICS)
    return Metric(given)


def check_tolerance(tolerance: Any) -> float:
    """The tolerance as a number. Raises UsageError for anything but a number from 0 on."""
    try:
        found = float(tolerance)
    except (TypeError, ValueError) as error:
        raise UsageError(f"tolerance is a number such as 1e-2, not {tolerance!r}.") from error
    if not 0 <= found < math.inf:
        raise UsageError(f"tolerance must be 0 or more and finite, not {found}.")
    return found


def _decisions(expected: Outputs, actual: Outputs) -> float:
    different = made = 0
    for name, reference in expected.items():
        if reference.dtype.kind == "f" and reference.ndim and reference.shape[-1] > 1:
            found = np.argmax(actual[name], axis=-1) != np.argmax(reference, axis=-1)
        elif reference.dtype.kind in "iub":
            found = np.asarray(actual[name] != reference)
        else:
            continue
        different, made = different + int(np.count_nonzero(found)), made + found.size
    return different / made if made else 0.0


def _of_output(expected: Outputs, actual: Outputs) -> float:
    def one(a: Any, e: Any) -> float:
        if e.dtype.kind not in "fc":
            return 0.0 if np.array_equal(a, e) else math.inf
        a, e = (np.asarray(each, np.result_type(e, np.float64)) for each in (a, e))
        with np.errstate(invalid="ignore"):
            distance = np.where((a == e) | (np.isnan(a) & np.isnan(e)), 0.0, np.abs(a - e))
        scale = float(np.abs(e[np.isfinite(e)]).max(initial=0.0)) or 1.0
        error = float(distance.max(initial=0.0)) / scale
        return error if math.isfinite(error) else math.inf

    return max((one(actual[name], reference) for name, reference in expected.items()), default=0.0)


def _angle(expected: Outputs, actual: Outputs) -> float:
    worst = 0.0
    for name, reference in expected.items():
        a = np.asarray(actual[name], np.float64).ravel()
        b = np.asarray(reference, np.float64).ravel()
        if np.array_equal(a, b, equal_nan=True):
            continue
        lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
        cosine = 0.0 if lengths == 0 else float(a @ b) / lengths
        worst = max(worst, 1.0 - cosine if math.isfinite(cosine) else math.inf)
    return worst


_SHARES: Mapping[str, Measure] = {OUTPUT: _of_output, TOP1: _decisions, COSINE: _angle}
