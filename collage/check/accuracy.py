"""Accuracy: the error of plans' outputs on samples, against ONNX Runtime without optimisation on the original model.

The samples are the user's, or made up where there are none. The error by the metric ``max`` is told in the units of the
last check (see ``final_check``), so that a tolerance means the same on each output of each model.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
import onnx
import onnxruntime

from collage.check.compare import Expected, Rule
from collage.check.final_check import output_rules
from collage.check.metrics import Metric
from collage.core.deadline import Deadline
from collage.core.library_text import library_text
from collage.errors import DatabaseError, ModelError
from collage.frontend.model import Model
from collage.frontend.random_inputs import random_inputs, random_value
from collage.frontend.read.shapes import model_inputs
from collage.frontend.read.value_types import value_type
from collage.frontend.session import Reference
from collage.graph.dataflow import Array
from collage.measure_db.database import Database
from collage.measure_db.keys import Fact

log = logging.getLogger(__name__)

T = TypeVar("T")

Run: TypeAlias = Callable[[Sequence[Array]], Sequence[Array]]
"""Runs something on inputs in the model's order, and gives its outputs in order."""

MADE_UP = 12
"""The number of made-up samples. The largest of as many errors is rarely exceeded by much in other draws."""
MADE_UP_QUICK = 4
"""The same for a quick compile, which keeps further below its tolerance for that reason."""
_SEED = 0xACC
"""Combined with the seed of a compile, so that the numbers are not those of other checks."""


@dataclass(frozen=True)
class Asked:
    """What a user asks of the error of outputs: at most ``tolerance`` by the metric, on the samples.

    Without samples so many inputs are made up.
    """

    tolerance: float
    metric: Metric
    samples: tuple[Mapping[str, Any], ...] = ()
    made_up: int = MADE_UP

    @property
    def about(self) -> str:
        """The samples in words."""
        count = len(self.samples) or self.made_up
        what = "sample" if self.samples else "made-up input"
        return f"{count} {what}{'s' if count != 1 else ''}" + (" that were given" if self.samples else "")


@dataclass(frozen=True)
class Accuracy:
    """Samples with the reference's outputs. Make it with ``of``. ``given`` tells that the samples are the user's."""

    asked: Asked
    names: tuple[str, ...]
    inputs: tuple[tuple[Array, ...], ...]
    expected: tuple[tuple[Array, ...], ...]
    rules: tuple[Rule, ...]
    given: bool

    @staticmethod
    def of(original: onnx.ModelProto, model: Model | None, asked: Asked, seed: int, deadline: Deadline) -> Accuracy:
        """Run the original model on the samples, or on inputs that are made from ``seed``.

        ``model`` is None where the model only runs whole; all its outputs are checked by the plain rule then. Raises
        ModelError where ONNX Runtime does not run it, and BudgetOverError after ``deadline``.
        """
        taken = [info.name for info in model_inputs(original)] if model is None else model.input_names
        made = [info.name for info in original.graph.output] if model is None else model.output_names
        inputs = tuple(_inputs(original, model, asked, seed))
        reference = Reference(original)
        expected = []
        for each in inputs:
            deadline.check()
            try:
                expected.append(tuple(reference.run(dict(zip(taken, each, strict=True)))))
            except Exception as error:  # ONNX Runtime's exceptions share no base class but Exception
                text = library_text(error)
                raise ModelError(f"ONNX Runtime cannot run the model on a sample: {text}") from error
        rules = (Rule(),) * len(made) if model is None else tuple(output_rules(model))
        return Accuracy(asked, tuple(made), inputs, tuple(expected), rules, bool(asked.samples))

    @property
    def digest(self) -> str | None:
        """What a value that depends on samples and metric is recorded under; None for a metric of the user's own."""
        if self.asked.metric.own is not None:
            return None
        hasher = hashlib.sha256(self.asked.metric.name.encode())
        for array in (a for each in self.inputs for a in each):
            hasher.update(f"{array.dtype}{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
        return hasher.hexdigest()[:32]

    @property
    def about(self) -> str:
        """The samples in words."""
        return self.asked.about

    def error(self, run: Run) -> float:
        """The error of something that runs the model. Raises MetricError, and what ``run`` raises."""
        return self.asked.metric.of_all(self.errors(run))

    def errors(self, run: Run) -> tuple[float, ...]:
        """The same for each sample."""
        metric = self.asked.metric
        errors = []
        for inputs, expected in zip(self.inputs, self.expected, strict=True):
            outputs = run(inputs)
            if metric.is_max:
                errors.append(self.largest(outputs, expected))
            else:
                named = (dict(zip(self.names, each, strict=True)) for each in (expected, outputs))
                errors.append(metric.measured(*named))
        return tuple(errors)

    def largest(
        self, outputs: Sequence[Array], expected: Sequence[Array], positions: Sequence[int] | None = None
    ) -> float:
        """The largest difference over the scale of its element; infinite for integers, NaN or types that differ.

        It is that of all outputs, or of those at these positions.
        """
        chosen = range(len(expected)) if positions is None else positions
        found = (Expected.of(expected[at], self.rules[at]).error(outputs[at]) for at in chosen)
        return max(found, default=0.0)

    def of_floats(self, outputs: Sequence[Array], expected: Sequence[Array]) -> float:
        """What errors are predicted by: outputs of floating-point numbers only; infinite if there are none.

        It is the largest difference over the scale of its element, or the metric if that is predicted, too.
        """
        floats = [at for at, each in enumerate(expected) if each.dtype.kind == "f"]
        if not floats:
            return math.inf
        metric = self.asked.metric
        if metric.is_predicted and not metric.is_max:
            return metric.measured(*({self.names[at]: each[at] for at in floats} for each in (expected, outputs)))
        return self.largest(outputs, expected, floats)


def on_samples(
    fact: Fact[Mapping[int, T]],
    look: Callable[[], Mapping[int, T]],
    accuracy: Accuracy,
    database: Database,
    about: tuple[str | None, Sequence[int], int],
) -> Mapping[int, T]:
    """What ``look`` finds on the samples, or the database has; nothing if ONNX Runtime does not run the model so.

    ``about`` is the digest of the model as it was loaded, the values or nodes that it is about, and the edition of
    ``look``. Raises DatabaseError, and BudgetOverError.
    """
    digest, numbers, edition = about
    try:
        if digest is None or accuracy.digest is None:
            return look()
        text = repr((digest, accuracy.digest, [*numbers], onnxruntime.__version__, edition))
        return database.remember(fact.at(hashlib.sha256(text.encode()).hexdigest()), look)
    except DatabaseError:
        raise
    except Exception as error:  # ONNX Runtime's exceptions share no base class but Exception
        log.info("%ss are not known: %s", fact.name, library_text(error))
        return {}


def _inputs(original: onnx.ModelProto, model: Model | None, asked: Asked, seed: int) -> list[tuple[Array, ...]]:
    """The samples in the model's order; what a sample lacks, and all where there are none, is made up."""
    rng = np.random.default_rng([_SEED, seed])
    infos = model_inputs(original)

    def made_up() -> dict[str, Array]:
        if model is not None:
            return dict(zip(model.input_names, random_inputs(model, rng), strict=True))
        return {info.name: random_value(value_type(info.type), rng) for info in infos}

    made = [made_up() for _ in range(len(asked.samples) or asked.made_up)]
    samples: Sequence[Mapping[str, Any]] = asked.samples or [{}] * len(made)
    return [
        tuple(sample.get(n, array) for n, array in each.items()) for sample, each in zip(samples, made, strict=True)
    ]
