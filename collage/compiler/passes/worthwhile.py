"""Measuring while it is worth it: candidates that could gain most come first, and the last ones may gain nothing.

A network of hundreds of operators has thousands of candidates. DenseNet-121's first mix was there after 92 s, and 413 s
of measuring after that found nothing faster. So the placement is searched from time to time, and what is left is not
measured where the last measurements have gained little.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from collage.compiler.passes.place import placed_by_known
from collage.compiler.state import Compilation, Context
from collage.errors import NoPlacementError
from collage.measure_db.protocol import Request
from collage.measure_db.results import Outcome

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Worthwhile:
    """Races candidates until ``fruitless`` pieces of work in a row gained a share of less than ``least_gain`` each.

    A piece ends with the first region after ``piece`` new measurements. The gain is that of the predicted time of the
    best placement. With an error budget all are raced, since not all errors are known before the model is placed.
    """

    piece: int = 150
    fruitless: int = 2
    least_gain: float = 0.003

    def raced(
        self,
        context: Context,
        compilation: Compilation,
        requests: Sequence[Request],
        rivals_us: Mapping[tuple[int, ...], float],
    ) -> dict[Request, Outcome]:
        """The outcomes of the requests, which are in the order of what they could gain, without those that are left."""
        measurer, epsilon_us = context.workbench(compilation).measurer, compilation.epsilon_us
        may_end = len(requests) > self.fruitless * self.piece and context.options.effort.races
        if compilation.proposal is None or context.options.tolerance or not may_end:
            return measurer.race(requests, rivals_us, epsilon_us)
        outcomes: dict[Request, Outcome] = {}
        best_us = self._predicted_us(context, compilation)
        made, idle = measurer.made_in_all, 0
        for done, asked in _pieces(requests, self.piece):
            outcomes |= measurer.race(asked, rivals_us, epsilon_us)
            if best_us is None or measurer.made_in_all - made < self.piece or done == len(requests):
                continue
            made = measurer.made_in_all
            known = replace(compilation, outcomes={**compilation.outcomes, **outcomes})
            now_us = self._predicted_us(context, known) or best_us
            log.info("%d of %d offers: predicted %.0f us, was %.0f us", done, len(requests), now_us, best_us)
            idle = 0 if now_us <= (1 - self.least_gain) * best_us else idle + 1
            best_us = now_us
            if idle == self.fruitless:
                break
        return outcomes

    def _predicted_us(self, context: Context, compilation: Compilation) -> float | None:
        """The predicted time of the best placement by what is known, in microseconds, or None where there is none."""
        try:
            return placed_by_known(context, compilation).placed.placement.predicted_us
        except NoPlacementError:
            return None


def _pieces(requests: Sequence[Request], size: int) -> Iterator[tuple[int, Sequence[Request]]]:
    """The requests in pieces of whole regions with at least ``size`` requests, each with the number done after it."""
    start = 0
    for end, request in enumerate(requests):
        if end - start >= size and request.nodes != requests[end - 1].nodes:
            yield end, requests[start:end]
            start = end
    yield len(requests), requests[start:]
