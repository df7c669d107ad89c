"""Measuring that predicts: what the additive model (Eq. 2.2) gets wrong inside the network is put right.

A kernel timed alone has its inputs in the cache, or not, as nobody knows beforehand. So the network that the
search proposes is run as a whole, each launch timed where it stands; where one is off by more than the noise its
time there takes the place of the one measured alone, and the search is asked again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from collage.assemble import Assembler, Rival
from collage.backends.base import Backend
from collage.finalists import Finalist, network_key
from collage.frontend.random_inputs import random_inputs
from collage.measure_db.database import Database
from collage.placing import Placer, Placing
from collage.progress import Progress
from collage.runtime.module import build_executor
from collage.runtime.profile import launch_times_us
from collage.search.corrections import NO_CORRECTIONS
from collage.search.placement import Candidate, Placement

log = logging.getLogger(__name__)

_ROUNDS = 3
_CLOSE = 1.1
"""Times the best mix's time: machines that others use, too, are as much off from one second to the next."""


@dataclass
class InNetwork:
    """Runs proposed networks and asks again; ``runs_made`` counts those that were not known yet.

    ``close`` are the mixes that ``settle`` found and did not prefer by much.
    """

    assembler: Assembler
    backends: Mapping[str, Backend]
    database: Database
    epsilon_us: float
    progress: Callable[[Progress], None]
    seed: int = 0
    runs_made: int = 0
    close: list[Placement] = field(default_factory=list)

    def settle(self, placer: Placer) -> Placing:
        """The placing whose mix takes least in the network, after a few rounds of asking the placer again.

        The mix's costs are then those in the network, so that their sum predicts the whole. Mixes of other rounds
        that came close are ``close``: the rounds were run at different times, and the last comparison is fairer.
        """
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
            times = self.times(finalist)
            found.append(_with_times(placing, finalist, times, self.epsilon_us))
            corrections = corrections.learn(finalist.launches, times, self.epsilon_us)
        assert first is not None
        found.sort(key=_mix_us)
        self.close = [
            each.mix for each in found[1:] if each.mix and _mix_us(each) < _CLOSE * _mix_us(found[0])
        ]
        return replace(found[0] if found else first, search_s=search_s)

    def times(self, finalist: Finalist) -> list[float]:
        """Microseconds of each launch, from the database or from running the network."""
        key = str(network_key(finalist, [finalist], self.assembler.model, self.assembler.target))
        known = self.database.get_fact("launch_times_us", key)
        if isinstance(known, list) and len(known) == len(finalist.launches):
            return [float(str(each)) for each in known]
        self.progress(Progress("run", 0, 1, f"a mix of {len(finalist.launches)} kernels"))
        executor = build_executor(finalist.parts, self.backends)
        inputs = random_inputs(self.assembler.model, np.random.default_rng(self.seed))
        times = launch_times_us(executor, inputs)
        self.runs_made += 1
        self.database.put_fact("launch_times_us", key, [round(each, 3) for each in times])
        return times


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
    conversions = [replace(c, cost_us=found[c]) for c in placing.mix.conversions]
    mix = Placement(tuple(candidates), sum(times), placing.mix.exact, tuple(conversions))
    is_mix = placing.placement is placing.mix or mix.predicted_us < placing.placement.predicted_us
    return replace(placing, mix=mix, placement=mix if is_mix else placing.placement)
