"""Sensitivities of the model that is compiled: measured once, and remembered for the model and its samples."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

import onnxruntime

from collage.check.sensitivity import sensitivities
from collage.compiler.accuracy import Accuracy
from collage.compiler.bench import Bench
from collage.core.deadline import Deadline
from collage.core.library_text import library_text
from collage.errors import DatabaseError
from collage.frontend.model import Model
from collage.frontend.subgraph import edges
from collage.measure_db.database import Json
from collage.measure_db.keys import Fact
from collage.search.errors import ErrorModel

log = logging.getLogger(__name__)

_EDITION = 3
"""That of the way in which sensitivities are measured."""
_SAMPLES = 4
"""Sensitivities are the largest ones of so many samples. Where few numbers of the outputs count, noise may cancel."""


def _write(found: Mapping[int, float]) -> Json:
    return {str(value): share for value, share in found.items()}


def _read(value: Any) -> Mapping[int, float]:
    return {int(number): float(share) for number, share in value.items()}


_SENSITIVITIES: Fact[Mapping[int, float]] = Fact("sensitivities", _write, _read)


def error_model(bench: Bench, accuracy: Accuracy) -> ErrorModel:
    """What predicts errors of outputs from those of kernels of reduced precision."""
    model = bench.model
    nodes = {o.request.nodes for o in bench.known.offers if o.request.variant.precision}
    taken = (value for each in nodes for ports in edges(model, each) for value in ports)
    values = sorted({value for value in taken if model.graph.values[value].producer is not None})
    look = partial(_measured, model, values, accuracy, bench.clock.deadline)
    key = _key(bench, values, accuracy)
    try:
        return ErrorModel(look() if key is None else bench.database.remember(_SENSITIVITIES.at(key), look))
    except DatabaseError:
        raise
    except Exception as error:  # ONNX Runtime's exceptions share no base class but Exception
        log.info("%s: sensitivities are not known: %s", model.name, library_text(error))
        return ErrorModel({})


def _key(bench: Bench, values: list[int], accuracy: Accuracy) -> str | None:
    """The database key, which covers weights and samples; None if one of these cannot be hashed."""
    model, samples = bench.measurer.as_loaded_digest, accuracy.digest
    if model is None or samples is None:
        return None
    about = (model, samples, values, onnxruntime.__version__, _EDITION)
    return hashlib.sha256(repr(about).encode()).hexdigest()


def _measured(model: Model, values: list[int], accuracy: Accuracy, deadline: Deadline) -> Mapping[int, float]:
    """Measure the sensitivities. Raises BudgetOverError after the deadline.

    Raises what ONNX Runtime raises if it does not run the model with noise.
    """
    samples = accuracy.inputs[:_SAMPLES]
    found = sensitivities(model, values, samples, accuracy.of_floats, deadline.check)
    return {value: float(f"{share:.4g}") for value, share in found.items()}
