"""Costs by calibration: times that launches took inside the network, and what is typical of all others."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from collage.measure.worker.protocol import CandidateRequest
from collage.measure_db.results import Measurement, Outcome, Rejection
from collage.search.candidate import Candidate
from collage.search.network_effect import NO_EFFECT, NetworkEffect, network_effect
from collage.search.placement import Placement
from collage.search.transforms import PlacedTransform, ValueTransform

log = logging.getLogger(__name__)

_OFF = 0.05
_OFF_US = 0.5
"""Differences below this share, or below so many microseconds, change no cost."""
_UNSURE = 0.5
"""With more noise than that, as a share of the time, a measurement says nothing of other kernels."""


@dataclass(frozen=True, slots=True)
class InNetwork:
    """The time of a launch alone, and the one that it took inside the network, in microseconds.

    The search reckons with ``expected_us``: the typical time inside the network, unless that is off by more than noise.
    """

    alone_us: float
    us: float
    expected_us: float


@dataclass(frozen=True)
class NetworkCosts:
    """Times of kernels and layout transforms inside the network, and its typical ``effect`` on all others.

    Runs at different times differ as a whole, as the machine does. So all times are as in the latest run.
    """

    kernels: Mapping[CandidateRequest, InNetwork] = field(default_factory=dict)
    transforms: Mapping[ValueTransform, InNetwork] = field(default_factory=dict)
    effect: NetworkEffect = NO_EFFECT

    def expected(self, outcomes: Mapping[CandidateRequest, Outcome]) -> dict[CandidateRequest, Outcome]:
        """The outcomes, with the times that are expected inside the network.

        A kernel that ran there has its own time. Another one of the same nodes takes longer in the network by the same
        factor, and all others by what is typical of launches.
        """
        known_us = {request: timed.expected_us for request, timed in self.kernels.items() if request in outcomes}
        corrected = _with_times(outcomes, known_us)
        factors = {
            request.nodes: timed.expected_us / timed.alone_us
            for request, timed in self.kernels.items()
            if timed.alone_us > 0 and _is_sure(outcomes.get(request))
        }
        for request, outcome in outcomes.items():
            if request in self.kernels or isinstance(outcome, Rejection):
                continue
            alone_us = outcome.median_us if isinstance(outcome, Measurement) else outcome.least_us
            factor = factors.get(request.nodes)
            us = self.effect.in_network_us(alone_us) if factor is None else factor * alone_us
            if isinstance(outcome, Measurement):
                corrected[request] = replace(outcome, median_us=us)
            else:
                corrected[request] = replace(outcome, least_us=us)
        return corrected

    def expected_transforms(self, alone_us: Mapping[ValueTransform, float]) -> dict[ValueTransform, float]:
        """The times of layout transforms that are expected inside the network, in microseconds."""
        return {
            each: self.transforms[each].expected_us if each in self.transforms else self.effect.in_network_us(us)
            for each, us in alone_us.items()
        }

    def of_mix(self, mix: Placement, epsilon_us: float) -> Placement:
        """A mix that was run, with the times of its launches as in the latest run, and their sum.

        ``epsilon_us`` is the cost of a context switch (Eq. 2.2).
        """
        candidates = tuple(replace(c, cost_us=self._known_us(c)) for c in mix.candidates)
        transforms = tuple(
            replace(each, cost_us=self.transforms[each.value, each.transform].us) for each in mix.transforms
        )
        switches_us = epsilon_us * sum(c.switches for c in candidates)
        total_us = switches_us + math.fsum(c.cost_us for c in candidates)
        total_us += math.fsum(each.cost_us for each in transforms)
        return replace(mix, candidates=candidates, transforms=transforms, predicted_us=total_us)

    def _known_us(self, candidate: Candidate) -> float:
        known = self.kernels.get(_request(candidate))
        return 0.0 if known is None else known.us  # a view takes no time

    def learn(
        self,
        outcomes: Mapping[CandidateRequest, Outcome],
        launches: Sequence[Candidate | PlacedTransform],
        times_us: Sequence[float],
        epsilon_us: float,
    ) -> NetworkCosts:
        """These costs, with what a run of the network shows; ``times_us`` are the times of its ``launches``.

        The outcomes tell how long its kernels take alone. The layout transforms have the costs that are expected now. A
        time includes a context switch (``epsilon_us`` microseconds, Eq. 2.2), which is subtracted.
        """
        alone_us = [self._alone_us(outcomes, launch) for launch in launches]
        own_us = [
            us if isinstance(launch, PlacedTransform) else max(0.0, us - epsilon_us * launch.switches)
            for launch, us in zip(launches, times_us, strict=True)
        ]
        effect = network_effect(alone_us, own_us)
        kernels = {each: self._as_in(effect, timed) for each, timed in self.kernels.items()}
        transforms = {each: self._as_in(effect, timed) for each, timed in self.transforms.items()}
        for launch, alone, us in zip(launches, alone_us, own_us, strict=True):
            noise_us = 0.0 if isinstance(launch, PlacedTransform) else launch.noise_us
            typical_us = effect.in_network_us(alone)
            timed = InNetwork(alone, us, us if _is_off(us, typical_us, noise_us) else typical_us)
            if isinstance(launch, PlacedTransform):
                transforms[launch.value, launch.transform] = timed
            else:
                kernels[_request(launch)] = timed
        about = len(launches), effect.factor, effect.launch_us
        log.info("%d launches take %.2f of their time alone and %.2f us in the network", *about)
        return NetworkCosts(kernels, transforms, effect)

    def _alone_us(self, outcomes: Mapping[CandidateRequest, Outcome], launch: Candidate | PlacedTransform) -> float:
        if isinstance(launch, PlacedTransform):
            known = self.transforms.get((launch.value, launch.transform))
            return self.effect.alone_us(launch.cost_us) if known is None else known.alone_us
        outcome = outcomes.get(_request(launch))
        return outcome.median_us if isinstance(outcome, Measurement) else 0.0  # a view takes no time

    def _as_in(self, effect: NetworkEffect, timed: InNetwork) -> InNetwork:
        """The time as it would be with that effect."""
        typical_us = self.effect.in_network_us(timed.alone_us)
        if typical_us <= 0:
            return timed
        ratio = effect.in_network_us(timed.alone_us) / typical_us
        return replace(timed, us=timed.us * ratio, expected_us=timed.expected_us * ratio)


UNCALIBRATED = NetworkCosts()


def _with_times(
    outcomes: Mapping[CandidateRequest, Outcome], times_us: Mapping[CandidateRequest, float]
) -> dict[CandidateRequest, Outcome]:
    """The outcomes, with other times of measurements that were not rejected since."""
    corrected = dict(outcomes)
    for request, us in times_us.items():
        outcome = corrected[request]
        if isinstance(outcome, Measurement):
            corrected[request] = replace(outcome, median_us=us)
    return corrected


def _is_sure(outcome: Outcome | None) -> bool:
    """Whether a time alone is known well enough to say by how much a kernel is slower in the network."""
    return isinstance(outcome, Measurement) and outcome.noise_us <= _UNSURE * outcome.median_us


def _request(candidate: Candidate) -> CandidateRequest:
    return CandidateRequest(candidate.nodes, candidate.backend, candidate.variant)


def _is_off(us: float, expected_us: float, noise_us: float) -> bool:
    return abs(us - expected_us) > max(noise_us, _OFF * expected_us, _OFF_US)
