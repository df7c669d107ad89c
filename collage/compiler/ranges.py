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
from typing import Any

import onnxruntime

from collage.check.value_ranges import value_ranges
from collage.compiler.accuracy import Accuracy
from collage.core.deadline import Deadline
from collage.core.library_text import library_text
from collage.errors import DatabaseError
from collage.frontend.model import Model
from collage.graph.ranges import Range, shared
from collage.measure_db.database import Database, Json
from collage.measure_db.keys import Fact

log = logging.getLogger(__name__)

_EDITION = 2
"""That of the way in which ranges are found."""


def _write(found: Mapping[int, Range]) -> Json:
    return {str(value): [each.low, each.high, each.seen] for value, each in found.items()}


def _read(value: Any) -> Mapping[int, Range]:
    return {int(number): Range(*map(float, each)) for number, each in value.items()}


_RANGES: Fact[Mapping[int, Range]] = Fact("value_ranges", _write, _read)


def ranges_on_samples(
    model: Model, digest: str | None, accuracy: Accuracy, database: Database, deadline: Deadline
) -> Mapping[int, Range]:
    """The ranges of values on the samples, found or recalled. ``digest`` is that of the model as it was loaded."""
    look = partial(_found, model, accuracy, deadline)
    key = _key(model, digest, accuracy)
    try:
        found = look() if key is None else database.remember(_RANGES.at(key), look)
    except DatabaseError:
        raise
    except Exception as error:  # ONNX Runtime's exceptions share no base class but Exception
        log.info("%s: ranges are not known: %s", model.name, library_text(error))
        return {}
    return shared(model.graph, found)


def _key(model: Model, digest: str | None, accuracy: Accuracy) -> str | None:
    """The database key, which covers weights and samples; None if one of these cannot be hashed."""
    samples = accuracy.digest
    if digest is None or samples is None:
        return None
    about = (digest, samples, sorted(model.opaque), onnxruntime.__version__, _EDITION)
    return hashlib.sha256(repr(about).encode()).hexdigest()


def _found(model: Model, accuracy: Accuracy, deadline: Deadline) -> Mapping[int, Range]:
    """Find the ranges. Raises BudgetOverError after the deadline.

    Raises what ONNX Runtime raises if it does not run the model with all values as outputs.
    """
    by_largest = accuracy.asked.metric.is_max
    return value_ranges(model, accuracy.inputs, by_largest=by_largest, check=deadline.check)
