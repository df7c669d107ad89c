"""Measure: the cost of every offer, and of a switch between libraries."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest

from collage.compiler.state import Compilation, Context
from collage.measure_db.protocol import Request
from collage.measure_db.results import Measurement, Outcome


@dataclass(frozen=True)
class Measure:
    """Measures all offers, or looks them up.

    The cost of a switch is measured with ``switched`` candidates of each backend: those whose time is nearest to
    ``typical_us`` microseconds. The quickest candidates run on one thread, so they would not show the cost of waking
    the threads of one library after those of another.
    """

    typical_us: float = 200.0
    switched: int = 4

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Sets the outcomes and the cost of a switch."""
        measurer = context.workbench(compilation).measurer
        outcomes = measurer.measure([offer.request for offer in compilation.offers])
        epsilon_us = measurer.epsilon_us(self._typical(outcomes))
        return replace(compilation, outcomes=outcomes, epsilon_us=epsilon_us)

    def _typical(self, outcomes: Mapping[Request, Outcome]) -> list[Request]:
        """A few candidates of each backend, one backend after another."""
        by_backend: dict[str, list[tuple[float, Request]]] = {}
        for request, outcome in outcomes.items():
            if isinstance(outcome, Measurement) and not outcome.tuning:
                distance = abs(math.log(max(outcome.median_us, 1e-3) / self.typical_us))
                by_backend.setdefault(request.backend, []).append((distance, request))
        nearest = [
            [request for _, request in sorted(each, key=_by_distance)[: self.switched]]
            for each in by_backend.values()
        ]
        return [request for turn in zip_longest(*nearest) for request in turn if request is not None]


def _by_distance(pair: tuple[float, Request]) -> tuple[float, tuple[int, ...]]:
    return pair[0], pair[1].nodes
