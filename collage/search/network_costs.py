"""Costs by calibration: times that launches took inside the network, instead of times of kernels by themselves."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from collage.measure_db.protocol import Request
from collage.measure_db.results import Measurement, Outcome
from collage.search.candidate import Candidate
from collage.search.transforms import PlacedTransform, ValueTransform

log = logging.getLogger(__name__)

_OFF = 0.05
_OFF_US = 0.5
"""Differences below this share, or below so many microseconds, change no cost."""


@dataclass(frozen=True)
class NetworkCosts:
    """Times of kernels and layout transforms inside the network, in microseconds."""

    kernels_us: Mapping[Request, float] = field(default_factory=dict)
    transforms_us: Mapping[ValueTransform, float] = field(default_factory=dict)

    def outcomes(self, measured: Mapping[Request, Outcome]) -> dict[Request, Outcome]:
        """The outcomes, with the times inside the network where they are known."""
        corrected = dict(measured)
        for request, us in self.kernels_us.items():
            outcome = corrected[request]
            if isinstance(outcome, Measurement):
                corrected[request] = replace(outcome, median_us=us)
        return corrected

    def learn(
        self, launches: Sequence[Candidate | PlacedTransform], times_us: Sequence[float], epsilon_us: float
    ) -> NetworkCosts:
        """These costs, with what a run of the network shows; ``times_us`` are the times of its ``launches``.

        Such a time includes a context switch (``epsilon_us`` microseconds, Eq. 2.2), which is subtracted.
        """
        kernels, transforms = dict(self.kernels_us), dict(self.transforms_us)
        for launch, us in zip(launches, times_us, strict=True):
            if isinstance(launch, PlacedTransform):
                if _is_off(us, launch.cost_us, 0.0):
                    transforms[launch.value, launch.transform] = us
                continue
            own_us = max(0.0, us - epsilon_us * launch.switches)
            if _is_off(own_us, launch.cost_us, launch.noise_us):
                kernels[Request(launch.nodes, launch.backend, launch.variant)] = own_us
        log.debug("%d kernels and %d layout transforms calibrated", len(kernels), len(transforms))
        return NetworkCosts(kernels, transforms)


UNCALIBRATED = NetworkCosts()


def _is_off(us: float, expected_us: float, noise_us: float) -> bool:
    return abs(us - expected_us) > max(noise_us, _OFF * expected_us, _OFF_US)
