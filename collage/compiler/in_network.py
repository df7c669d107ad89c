"""Measuring that predicts: what the additive model (Eq. 2.2) gets wrong inside the network is put right.

A kernel timed alone has its inputs in the cache, or not, as nobody knows beforehand. So the network that the
search proposes is run as a whole, each launch timed where it stands; where one is off by more than the noise its
time there takes the place of the one measured alone, and the search is asked again.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from collage.backends.base import VIEW
from collage.compiler.assemble import Assembler, Rival
from collage.compiler.finalist import Finalist, network_key
from collage.compiler.placing import Placer, Placing
from collage.compiler.plan_runs import PlanDroppedError, PlanRuns
from collage.core.progress import Progress
from collage.errors import NoPlacementError
from collage.search.candidate import Candidate
from collage.search.corrections import NO_CORRECTIONS
from collage.search.placement import Placement

log = logging.getLogger(__name__)

_ROUNDS = 3
_CLOSE = 1.1
"""Times the best mix's time: machines that others use, too, are as much off from one second to the next."""


@dataclass
class InNetwork:
    """Runs proposed networks and asks again; ``close`` are the mixes that ``settle`` did not prefer by much."""

    assembler: Assembler
    runs: PlanRuns
    epsilon_us: float
    progress: Callable[[Progress], None]
    close: list[Placement] = field(default_factory=list)

    def settle(self, placer: Placer) -> Placing:
        """The placing whose mix takes least in the network, after a few rounds of asking the placer again.

        The mix's costs are then those in the network, so that their sum predicts the whole. Mixes of other rounds
        that came close are ``close``: the rounds were run at different times, and the last comparison is fairer.

        Where the mix fails as a whole, one of its backends is left out, whichever helps, or else all mixes are.
        Raises KernelRejectedError and NoPlacementError.
        """
        placer.left_out = frozenset()
        try:
            return self._rounds(placer)
        except PlanDroppedError as dropped:
            log.info("the mix %s", dropped)
        placing = placer.place()
        for name in _backends(placing.mix):
            placer.left_out = frozenset([name])
            with suppress(PlanDroppedError, NoPlacementError):
                return self._rounds(placer)
        placer.left_out = frozenset()
        return placer.without_mix(placing)

    def _rounds(self, placer: Placer) -> Placing:
        """Raises PlanDroppedError where the first mix fails as a whole."""
        corrections = NO_CORRECTIONS
        found: list[Placing] = []
        first: Placing | None = None
        search_s = 0.0
        seen: list[tuple[Candidate, ...]] = []
        for _ in range(_ROUNDS):
            placing = placer.place(corrections)
            search_s += placing.search_s
            first = first or placing
            if placing.mix is None or _alike(placing.mix) in seen:
                break
            seen.append(_alike(placing.mix))
            finalist = self.assembler.assemble(Rival("mix", placing.mix, exclusive=False), placer.tunings())
            try:
                times = self.times(finalist)
            except PlanDroppedError as dropped:
                if not found:
                    raise
                log.info("a mix of %d kernels %s", len(finalist.launches), dropped)
                break
            found.append(_with_times(placing, finalist, times, self.epsilon_us))
            corrections = corrections.learn(finalist.launches, times, self.epsilon_us)
        assert first is not None
        found.sort(key=_mix_us)
        self.close = [
            each.mix for each in found[1:] if each.mix and _mix_us(each) < _CLOSE * _mix_us(found[0])
        ]
        return replace(found[0] if found else first, search_s=search_s)

    def times(self, finalist: Finalist) -> list[float]:
        """Microseconds of each launch, from the database or from running the network.

        Raises KernelRejectedError and PlanDroppedError.
        """
        self.runs.refuse_dropped(finalist)
        key = str(network_key(finalist, [finalist], self.assembler.model, self.assembler.target))
        known = self.runs.database.get_fact("launch_times_us", key)
        if isinstance(known, list) and len(known) == len(finalist.launches):
            return [float(str(each)) for each in known]
        self.progress(Progress("run", 0, 1, f"a mix of {len(finalist.launches)} kernels"))
        times = self.runs.times_us(finalist)
        self.runs.database.put_fact("launch_times_us", key, [round(each, 3) for each in times])
        return times


def _backends(mix: Placement | None) -> list[str]:
    """Those of the mix, the one with the fewest nodes first."""
    counts = Counter(c.backend for c in mix.candidates for _ in c.nodes) if mix is not None else Counter()
    return sorted(counts.keys() - {VIEW}, key=lambda name: (counts[name], name))


def _mix_us(placing: Placing) -> float:
    return math.inf if placing.mix is None else placing.mix.predicted_us


def _alike(placement: Placement) -> tuple[Candidate, ...]:
    """The placement's candidates without what they cost."""
    return tuple(replace(c, cost_us=0.0, noise_us=0.0) for c in placement.candidates)


def _with_times(placing: Placing, finalist: Finalist, times: Sequence[float], epsilon_us: float) -> Placing:
    """The placing with the mix's costs as they are in the network, and the better of it and the placement."""
    assert placing.mix is not None
    found = dict(zip(finalist.launches, times, strict=True))
    candidates = [
        replace(c, cost_us=max(0.0, found[c] - epsilon_us * c.switches)) if c in found else c
        for c in placing.mix.candidates
    ]
    transforms = [replace(each, cost_us=found[each]) for each in placing.mix.transforms]
    mix = Placement(tuple(candidates), sum(times), placing.mix.exact, tuple(transforms))
    is_mix = placing.placement is placing.mix or mix.predicted_us < placing.placement.predicted_us
    return replace(placing, mix=mix, placement=mix if is_mix else placing.placement)
