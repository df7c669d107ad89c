"""The error of the outputs that kernels in reduced precision cause, as a sum that a search can minimise.

A kernel's contribution is its own error, as a share of its outputs' scale (``Measurement.max_error``), times the
sensitivity of its outputs: the share of a value's error that is left in the model's outputs (``check.sensitivity``).
Roundings of different kernels are independent, so contributions add up in quadrature, and the unit of
``Candidate.error`` is the square of a contribution. Errors of plans that were run correct it (``error_corrections``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from collage.graph.formats import Narrow
from collage.graph.storage import BF16, FP16, INT8, TF32, Storage
from collage.measure.worker.protocol import CandidateRequest
from collage.search.candidate import Candidate
from collage.search.dp_budget import GAP, Budget
from collage.search.error_corrections import Factors, Kind, Seen, factors_by

UNKNOWN = 1.0
"""The sensitivity of a value where none is known: an error comes out as large as it went in."""
_UNMEASURED = {BF16: 2e-3, TF32: 2.5e-4, FP16: 2.5e-4, INT8: 1e-2}
"""The errors of kernels that lost a race, so that theirs are not known yet: those of rounding their factors."""
_ROUNDING = {BF16: 2.0**-9, FP16: 2.0**-12}
"""The largest errors of storing a value, in its scale."""


def unmeasured(precision: str) -> float:
    """The error of a kernel of that reduced precision whose error is not known yet."""
    return _UNMEASURED.get(precision, _UNMEASURED[BF16])


@dataclass(frozen=True)
class ErrorModel:
    """What predicts errors of outputs. ``sensitivities`` are by value, and ``seen`` are plans that were run."""

    sensitivities: Mapping[int, float] = field(default_factory=dict)
    seen: tuple[Seen, ...] = ()

    def added(self, values: Iterable[int], max_error: float, kind: Kind, least: float = 0.0) -> float:
        """The ``Candidate.error`` of a kernel of that kind that writes ``values`` with ``max_error``.

        Before the kind's factor it is at least ``least`` (see ``inner_errors``).
        """
        return self.factors.of(kind) ** 2 * max(self.without_factor(values, max_error), least)

    def without_factor(self, values: Iterable[int], max_error: float) -> float:
        """The same by sensitivities alone."""
        return math.fsum((max_error * self.sensitivities.get(value, self._largest)) ** 2 for value in values)

    def of_rounding(self, ports: Iterable[tuple[int, Storage]]) -> float:
        """The ``Candidate.error`` of storing values in these storages; values of unknown sensitivity add nothing.

        A kernel's own error has that only as far as it shows on one input, where it may be small by luck.
        """
        found = (
            _ROUNDING.get(storage.format.precision, 0.0) * self.sensitivities.get(value, 0.0)
            for value, storage in ports
            if isinstance(storage.format, Narrow)
        )
        return math.fsum(each**2 for each in found)

    @cached_property
    def factors(self) -> Factors:
        """The factors of errors that the plans which were run have shown."""
        return factors_by(self.seen)

    @cached_property
    def _largest(self) -> float:
        return max(self.sensitivities.values(), default=UNKNOWN)

    def corrected(self, candidates: Iterable[Candidate], error: float) -> ErrorModel:
        """The same after a plan of these candidates, whose errors it has predicted, was run and had this error."""
        added: dict[Kind, float] = {}
        for each in candidates:
            if each.error:
                kind = kind_of(each)
                added[kind] = added.get(kind, 0.0) + each.error / self.factors.of(kind) ** 2
        return replace(self, seen=(*self.seen, Seen(added, error)))

    def of_plan(self, seen: Seen) -> float:
        """The error that is predicted of a plan that was run, with what is known now."""
        return math.sqrt(math.fsum(self.factors.of(kind) ** 2 * each for kind, each in seen.added.items()))


def kind_of(of: Candidate | CandidateRequest) -> Kind:
    """The kind of a kernel, which tells how its error is corrected."""
    return of.backend, of.variant.precision


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
