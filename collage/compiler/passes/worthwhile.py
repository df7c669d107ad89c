"""Measuring while it is worth it: candidates that could gain most come first, and the last ones may gain nothing.

A network of hundreds of operators has thousands of candidates. DenseNet-121's first mix was there after 92 s, and 413 s
of measuring after that found nothing faster. So the placement is searched from time to time, and what is left is not
measured where the last measurements have gained little.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from collage.compiler.by_known import least_by_known, placed_by_known
from collage.compiler.state import Compilation, Context
from collage.errors import NoPlacementError
from collage.measure.rivals import Rivals
from collage.measure.worker.protocol import CandidateRequest
from collage.measure_db.results import Outcome

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Worthwhile:
    """Races candidates until ``fruitless`` pieces of work in a row gained a share of less than ``least_gain`` each.

    Where the compile has to end at some time, a piece has to gain more the more of the remaining time it took: without
    time to correct them in the network, predictions that are better by a percent are worth nothing. A piece that took
    all of it would have to gain ``of_the_time``.

    A piece ends with the first region after ``piece`` new measurements. The gain is that of the predicted time of the
    best placement in the model's own dtypes. Within a tolerance it may also be that of the best placement under the
    error budget that samples have led to so far: of a bound by prices, which is found quickly. Where kernels of reduced
    precision are measured and there is no such budget yet, all are raced.
    """

    piece: int = 150
    fruitless: int = 2
    least_gain: float = 0.003
    of_the_time: float = 0.1

    def raced(
        self,
        context: Context,
        compilation: Compilation,
        requests: Sequence[CandidateRequest],
        rivals: Rivals,
    ) -> dict[CandidateRequest, Outcome]:
        """The outcomes of the requests, which are in the order of what they could gain, without those that are left."""
        measurer = context.workbench(compilation).measurer
        may_end = len(requests) > self.fruitless * self.piece and context.options.effort.races
        unknown = compilation.errors is None and any(request.variant.precision for request in requests)
        if compilation.proposal is None or unknown or not may_end:
            return measurer.race(requests, rivals)
        outcomes: dict[CandidateRequest, Outcome] = {}
        best_us = self._predicted_us(context, compilation)
        made, idle, left_s = measurer.made_in_all, 0, context.course.deadline.remaining_s
        for done, asked in _pieces(requests, self.piece):
            outcomes |= measurer.race(asked, rivals)
            if not best_us or measurer.made_in_all - made < self.piece or done == len(requests):
                continue
            known = replace(compilation, outcomes={**compilation.outcomes, **outcomes})
            now_us = self._predicted_us(context, known) or best_us
            made = measurer.made_in_all
            log.info("%d of %d offers: predicted %s us, was %s us", done, len(requests), now_us, best_us)
            before_s, left_s = left_s, context.course.deadline.remaining_s
            least = self._least(before_s, left_s)
            gains = any(now <= (1 - least) * was for now, was in zip(now_us, best_us, strict=True))
            idle = 0 if gains else idle + 1
            best_us = now_us
            if idle == self.fruitless:
                break
        return outcomes

    def _least(self, before_s: float, left_s: float) -> float:
        """The least share that a piece has to gain; the seconds of the compile that were left before it and now."""
        if not 0 < before_s < math.inf:
            return self.least_gain
        return max(self.least_gain, self.of_the_time * (before_s - left_s) / before_s)

    def _predicted_us(self, context: Context, compilation: Compilation) -> tuple[float, ...]:
        """The predicted times of the best placements by what is known, in microseconds; none where there is none."""
        try:
            exact_us = placed_by_known(context, compilation).placed.placement.predicted_us
            reduced_us = () if compilation.errors is None else (least_by_known(context, compilation),)
        except NoPlacementError:
            return ()
        return exact_us, *reduced_us


def _pieces(
    requests: Sequence[CandidateRequest], size: int
) -> Iterator[tuple[int, Sequence[CandidateRequest]]]:
    """The requests in pieces of whole regions with at least ``size`` requests, each with the number done after it."""
    start = 0
    for end, request in enumerate(requests):
        if end - start >= size and request.nodes != requests[end - 1].nodes:
            yield end, requests[start:end]
            start = end
    yield len(requests), requests[start:]
