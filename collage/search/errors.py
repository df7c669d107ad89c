"""How errors of kernels travel to the outputs, so that a search can add them up.

A kernel in reduced precision is off by so much of its outputs' scale (``Measurement.max_error``). A value's sensitivity
says by how much of their scale the model's outputs change for that (see ``measure_db.sensitivity``). The product is the
kernel's contribution. Roundings of different kernels are independent, so that contributions add up in quadrature: the
unit of ``Candidate.error`` is the square of a contribution.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from collage.graph.storage import BF16, FP16, INT8, STORED_INT8, TF32
from collage.search.dp_budget import GAP, Budget

UNKNOWN = 1.0
"""The sensitivity of a value where none is known: an error comes out as large as it went in."""
_UNMEASURED = {BF16: 2e-3, TF32: 2.5e-4, FP16: 2.5e-4, INT8: 1e-2, STORED_INT8: 1e-2}
"""The errors of kernels that lost a race, so that theirs are not known yet: those of rounding their factors."""


def unmeasured(precision: str) -> float:
    """The error of a kernel of that reduced precision whose error is not known yet."""
    return _UNMEASURED.get(precision, _UNMEASURED[BF16])


@dataclass(frozen=True)
class ErrorModel:
    """What predicts errors of outputs. ``sensitivities`` are by value.

    ``correction`` is what plans that were run have shown: the factor by which errors are larger than predicted without.
    """

    sensitivities: Mapping[int, float] = field(default_factory=dict)
    correction: float = 1.0

    def added(self, values: Iterable[int], max_error: float) -> float:
        """What a kernel adds that writes ``values`` with this error, in the unit of ``Candidate.error``."""
        found = [self.sensitivities.get(value, self._largest) for value in values]
        return math.fsum((self.correction * max_error * each) ** 2 for each in found)

    @cached_property
    def _largest(self) -> float:
        return max(self.sensitivities.values(), default=UNKNOWN)

    def corrected(self, factor: float) -> ErrorModel:
        """The same after a plan whose error was ``factor`` times the predicted one."""
        return replace(self, correction=self.correction * factor)


def of_outputs(added: float) -> float:
    """The error of the outputs that candidates' errors add up to, as a share of the outputs' scale."""
    return math.sqrt(added)


def allowed(error: float) -> float:
    """The sum of candidates' errors that an error of the outputs allows: the inverse of ``of_outputs``."""
    return error**2


@dataclass(frozen=True)
class ErrorBudget:
    """The largest error of the outputs that a search aims at, and the model that predicts it.

    ``gap`` is the share of the cost that the search need not find, and ``price_us`` what a unit of error was worth to
    the last one (see ``dp_budget.Budget``).
    """

    error: float
    model: ErrorModel = field(default_factory=ErrorModel)
    gap: float = GAP
    price_us: float = 0.0

    @property
    def of_candidates(self) -> Budget:
        """What candidates' errors may add up to."""
        return Budget(allowed(self.error), gap=self.gap, price_us=self.price_us)
