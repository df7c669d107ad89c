"""What the search proposes, and what runs of its proposals in the network have shown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from collage.search.candidate import Candidate
from collage.search.network_costs import UNCALIBRATED, NetworkCosts
from collage.search.placement import Placement
from collage.search.transforms import ValueTransform


@dataclass(frozen=True)
class Proposal:
    """The best placement, the mix (the best placement in several parts, or None), and all candidates.

    ``transforms_us`` are the costs of layout transforms in microseconds. ``corrections`` are the times in the network
    that are known by now.
    """

    placement: Placement
    mix: Placement | None
    candidates: tuple[Candidate, ...]
    transforms_us: Mapping[ValueTransform, float] = field(default_factory=dict)
    corrections: NetworkCosts = UNCALIBRATED

    @property
    def mix_us(self) -> float:
        """The predicted time of the mix in microseconds; infinite where there is none."""
        return math.inf if self.mix is None else self.mix.predicted_us


@dataclass(frozen=True)
class Calibration:
    """What runs of proposed mixes have shown so far.

    ``rounds`` are the proposals whose mixes were run, as the search made them. What the runs have shown is in
    ``corrections``. ``seen`` are the mixes that were run, without their costs. The calibration is ``converged`` when
    another round would show nothing new.
    """

    corrections: NetworkCosts = UNCALIBRATED
    rounds: tuple[Proposal, ...] = ()
    seen: tuple[tuple[Candidate, ...], ...] = ()
    converged: bool = False


NOT_CALIBRATED = Calibration()
