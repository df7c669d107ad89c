"""Why a candidate was not chosen: what the module would take longer with it, in microseconds and in words."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from collage.compiler.bench import Bench
from collage.compiler.best import Best
from collage.compiler.plan import Placed, Plan, Whole
from collage.measure.worker.protocol import CandidateRequest
from collage.measure_db.results import Outcome
from collage.search.candidate import Candidate
from collage.search.candidates import candidates_of
from collage.search.exchange import Exchange, Exchanges
from collage.search.transforms import ValueTransform

_LEAST_US = 0.05
"""Parts of a difference that would be written as 0.0 us are left out."""
_MOST_S = 3.0
"""A report waits no longer for verdicts; the candidates after that have ``_LATE``."""
_LATE = "not compared with the mix: the model has too many candidates"


@dataclass(frozen=True)
class Loss:
    """What the module loses by another choice, in ``words``, and in microseconds if that can be said."""

    words: str
    us: float | None = None


class Losses:
    """What other candidates would cost the plan that is handed over, or the best mix if that is an engine."""

    def __init__(self, bench: Bench, best: Best, plan: Plan) -> None:
        mixes = [each for each in (plan, *best.everything()) if isinstance(each, Placed)]
        self._bench = bench
        self._whole = plan if isinstance(plan, Whole) else None
        self._mix = mixes[0] if mixes and bench.is_matched else None
        self._than = " than the fastest mix" if self._whole else ""
        self._ran = {_key(c) for each in mixes for c in each.placement.candidates}
        self._left_out = bench.known.left_out
        self._until = time.monotonic() + _MOST_S

    def of(self, request: CandidateRequest) -> Loss | None:
        """The loss by a measured candidate; None for kernels that are handed over."""
        if self._mix is None:
            return (
                None if self._whole is None else Loss(f"no mix is faster than {self._whole.engine} on the whole model")
            )
        if request in self._of_mix:
            if self._whole is None:
                return Loss("runs on one thread instead, beside others") if self._mix.streams else None
            return Loss(f"part of the fastest mix, which is not faster than {self._whole.engine} on the whole model")
        if request.backend in self._left_out:
            return Loss("its backend is left out: several of its kernels failed in networks")
        if request not in self._candidates:
            return None
        if time.monotonic() > self._until:
            return Loss(_LATE)
        candidate, exchange = self._candidates[request], self.exchange(request)
        if exchange is None:
            return Loss(
                "fits no mix: no measured kernel covers the operators beside it, or a conversion has no known cost"
            )
        if exchange.total_us < -exchange.noise_us and not candidate.outrun:
            # What is faster than the chosen kernels only since these ran slowly in their places is not faster.
            alone = self._alone.of(self._candidates_alone[request])
            if alone is not None and alone.total_us > _LEAST_US:
                words = f"{alone.total_us:.1f} us slower{self._than}, all timed alone{_parts(alone)}"
                return Loss(words, alone.total_us)
        return Loss(self._words(candidate, exchange, _key(candidate) in self._ran), exchange.total_us)

    def exchange(self, request: CandidateRequest) -> Exchange | None:
        """The exchange of the mix's kernels for a measured candidate; None if there is none."""
        candidate = self._candidates[request]
        return self._exchanges.of(candidate, at_least=candidate.outrun)

    @cached_property
    def _of_mix(self) -> Collection[CandidateRequest]:
        assert self._mix is not None
        return {CandidateRequest(c.nodes, c.backend, c.variant) for c in self._mix.placement.candidates}

    @cached_property
    def _candidates(self) -> dict[CandidateRequest, Candidate]:
        return self._made(self._bench.known.costs.expected(self._bench.known.outcomes))

    @cached_property
    def _candidates_alone(self) -> dict[CandidateRequest, Candidate]:
        return self._made(self._bench.known.outcomes)

    @cached_property
    def _exchanges(self) -> Exchanges:
        known = self._bench.known
        return self._between(self._candidates, known.costs.expected_transforms(known.transforms_us))

    @cached_property
    def _alone(self) -> Exchanges:
        return self._between(self._candidates_alone, self._bench.known.transforms_us)

    def _made(self, outcomes: Mapping[CandidateRequest, Outcome]) -> dict[CandidateRequest, Candidate]:
        bench, known = self._bench, self._bench.known
        errors = None if known.errors is None else known.errors.model
        found = candidates_of(bench.model, known.offers, known.views, outcomes, bench.task.without_switch, errors)
        return {CandidateRequest(c.nodes, c.backend, c.variant): c for c in found}

    def _between(
        self, candidates: Mapping[CandidateRequest, Candidate], transforms_us: Mapping[ValueTransform, float]
    ) -> Exchanges:
        assert self._mix is not None
        usable = [each for each in candidates.values() if each.backend not in self._left_out]
        kernels = self._mix.placement.candidates
        placed = [candidates.get(CandidateRequest(c.nodes, c.backend, c.variant), c) for c in kernels]
        graph, epsilon_us = self._bench.model.graph, self._bench.known.epsilon_us
        return Exchanges(graph, [replace(each, outrun=False) for each in placed], usable, epsilon_us, transforms_us)

    def _words(self, candidate: Candidate, exchange: Exchange, ran: bool) -> str:
        total_us = exchange.total_us
        if total_us > _LEAST_US:
            least = "at least " if candidate.outrun else ""
            return f"{least}{total_us:.1f} us slower{self._than}{_parts(exchange)}"
        if candidate.outrun:
            return "lost a race of kernels for the same operators"
        if total_us >= -max(exchange.noise_us, _LEAST_US):
            return f"as fast, within the noise of {exchange.noise_us:.1f} us"
        if candidate.variant.precision:
            return "the tolerance leaves no room for its error"
        if ran:
            return f"ran in another mix, which was not faster; {-total_us:.1f} us faster by its own times"
        return f"no mix with it was run; {-total_us:.1f} us faster by its own times{_parts(exchange)}"


def _parts(exchange: Exchange) -> str:
    """The parts of a difference, if there are several."""
    operators = f"{exchange.rest} operator{'s' if exchange.rest != 1 else ''} left over"
    parts = {"itself": exchange.kernel_us, operators: exchange.rest_us, "conversions": exchange.transforms_us}
    found = [f"{what} {us:+.1f}" for what, us in parts.items() if abs(us) >= _LEAST_US]
    return f": {', '.join(found)}" if len(found) > 1 else ""


def _key(candidate: Candidate) -> tuple[object, ...]:
    return candidate.nodes, candidate.backend, candidate.variant
