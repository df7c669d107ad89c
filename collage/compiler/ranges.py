"""Ranges: what numbers values have on samples, so that backends may offer to store them in 8 bits.

It is for compiles with a tolerance and samples of the user's. Numbers beyond the range are cut, and what made-up inputs
show says nothing of the numbers that a user's have. ONNX Runtime runs the model on the samples, and what is found is a
fact in the database, for the model, its weights and its samples.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import onnxruntime

from collage.check.value_ranges import value_ranges
from collage.compiler.accuracy import Accuracy
from collage.compiler.metrics import MetricError
from collage.core.deadline import Deadline
from collage.core.library_text import library_text
from collage.core.progress import Progress
from collage.errors import DatabaseError, ModelError
from collage.frontend.model import Model
from collage.frontend.model_artifacts import fits_an_artifact
from collage.graph.ranges import Range, shared
from collage.graph.storage import INT8
from collage.measure_db.database import Json
from collage.measure_db.keys import Fact

if TYPE_CHECKING:
    from collage.compiler.bench import Bench

log = logging.getLogger(__name__)

_EDITION = 2
"""That of the way in which ranges are found."""


def _write(found: Mapping[int, Range]) -> Json:
    return {str(value): [each.low, each.high, each.seen] for value, each in found.items()}


def _read(value: Any) -> Mapping[int, Range]:
    return {int(number): Range(*map(float, each)) for number, each in value.items()}


_RANGES: Fact[Mapping[int, Range]] = Fact("value_ranges", _write, _read)


def ranges_on_samples(bench: Bench) -> Mapping[int, Range]:
    """The ranges of values on the user's samples, found or recalled; none if kernels may not compute in 8 bits.

    They are for a placement of this model alone.
    """
    source, model = bench.task.source, bench.model
    guarded = fits_an_artifact(source.original)  # guards keep NaN away from what would lose it
    suffix = bench.imported.suffix is not None
    if (
        INT8 not in bench.task.options.precisions
        or not source.samples
        or source.family
        or suffix
        or not guarded
    ):
        return {}
    bench.show(Progress("errors", 0, 1))
    try:
        accuracy = bench.accuracy
    except (MetricError, ModelError) as error:  # which proposers that measure errors tell, too
        log.info("no ranges are known: %s", error)
        return {}
    look = partial(_found, model, accuracy, bench.clock.deadline)
    key = _key(bench, accuracy)
    try:
        found = look() if key is None else bench.database.remember(_RANGES.at(key), look)
    except DatabaseError:
        raise
    except Exception as error:  # ONNX Runtime's exceptions share no base class but Exception
        log.info("%s: ranges are not known: %s", model.name, library_text(error))
        return {}
    return shared(model.graph, found)


def _key(bench: Bench, accuracy: Accuracy) -> str | None:
    """The database key, which covers weights and samples; None if one of these cannot be hashed."""
    model, samples = bench.measurer.as_loaded_digest, accuracy.digest
    if model is None or samples is None:
        return None
    opaque = sorted(bench.model.opaque)
    about = (model, samples, opaque, onnxruntime.__version__, _EDITION)
    return hashlib.sha256(repr(about).encode()).hexdigest()


def _found(model: Model, accuracy: Accuracy, deadline: Deadline) -> Mapping[int, Range]:
    """Find the ranges. Raises BudgetOverError after the deadline.

    Raises what ONNX Runtime raises if it does not run the model with all values as outputs.
    """
    by_largest = accuracy.asked.metric.is_max
    return value_ranges(model, accuracy.inputs, by_largest=by_largest, check=deadline.check)
