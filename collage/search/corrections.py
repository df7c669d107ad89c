"""Times inside the network, which count instead of those of kernels measured alone."""

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
"""Differences below this share, or this many microseconds, are no news."""


@dataclass(frozen=True)
class Corrections:
    """Times inside the network in microseconds, of kernels and of layout transforms."""

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
    ) -> Corrections:
        """These and what a run of the network shows: ``times_us`` are those of its launches.

        A switch between libraries (``epsilon_us``, Eq. 2.2) is part of such a time, and is taken off again.
        """
        kernels, transforms = dict(self.kernels_us), dict(self.transforms_us)
        for launch, us in zip(launches, times_us, strict=True):
            if isinstance(launch, PlacedTransform):
                if _is_off(us, launch.cost_us, 0.0):
                    transforms[launch.value, launch.transform] = us
                continue
            alone = max(0.0, us - epsilon_us * launch.switches)
            if _is_off(alone, launch.cost_us, launch.noise_us):
                kernels[Request(launch.nodes, launch.backend, launch.variant)] = alone
        log.debug("%d kernels and %d layout transforms corrected", len(kernels), len(transforms))
        return Corrections(kernels, transforms)


NO_CORRECTIONS = Corrections()


def _is_off(us: float, expected_us: float, noise_us: float) -> bool:
    return abs(us - expected_us) > max(noise_us, _OFF * expected_us, _OFF_US)
