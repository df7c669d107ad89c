"""Calibrate: costs of the additive model (Eq. 2.2) are corrected by times in the network.

Whether a kernel finds its inputs in the cache is not known when it is timed alone. So the network that the search
proposes is run as a whole, with each launch timed in its place. Where a launch is off by more than the noise, its time
in the network replaces the one that was measured alone. All other candidates are charged what is typical of launches in
the network (``search/network_effect.py``), and the search is repeated.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from collage.compiler.plan import Plan, plans_of
from collage.compiler.plan_failures import PlanDroppedError
from collage.compiler.proposal import Proposal
from collage.compiler.state import Compilation, Context
from collage.search.candidate import Candidate
from collage.search.network_costs import NetworkCosts
from collage.search.placement import Placement

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Calibrate:
    """Runs the proposed mix, unless it was run before, and learns from the times of its launches.

    The proposal is then the one of all rounds whose mix takes the least time. Its costs are those in the network, so
    that their sum predicts the whole. They are as in the latest run, since the machine may be slower in one run than in
    the next. At most ``most_close`` mixes of other rounds are planned, too, where their time is less than ``close``
    times the least, and the last comparison decides between them.
    """

    close: float = 1.05
    most_close: int = 3

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Sets the calibration, the proposal and its plans.

        Raises KernelRejectedError where a kernel fails, and PlanDroppedError where the first mix fails as a whole.
        """
        calibration, proposal = compilation.calibration, compilation.placed
        if proposal.mix is None or _alike(proposal.mix) in calibration.seen:
            return self._settled(context, compilation)
        bench = context.workbench(compilation)
        mix = Plan("mix", proposal.mix, exclusive=False)
        executable = bench.assembler.assemble(mix, compilation.tunings)
        try:
            times = bench.runs.launch_times_us(executable)
        except PlanDroppedError as dropped:
            if not calibration.rounds:
                raise
            log.info("a mix of %d kernels %s", len(executable.launches), dropped)
            return self._settled(context, compilation)
        epsilon_us = compilation.epsilon_us
        calibration = replace(
            calibration,
            rounds=(*calibration.rounds, proposal),
            seen=(*calibration.seen, _alike(proposal.mix)),
            corrections=calibration.corrections.learn(
                compilation.outcomes, executable.launches, times, epsilon_us
            ),
        )
        return self._best(context, replace(compilation, calibration=calibration))

    def _settled(self, context: Context, compilation: Compilation) -> Compilation:
        calibration = replace(compilation.calibration, converged=True)
        return self._best(context, replace(compilation, calibration=calibration))

    def _best(self, context: Context, compilation: Compilation) -> Compilation:
        """Sets the best proposal of all rounds and its plans. A concurrent plan stays until there is a better one."""
        calibration, epsilon_us = compilation.calibration, compilation.epsilon_us
        timed = [_with_times(each, calibration.corrections, epsilon_us) for each in calibration.rounds]
        rounds = sorted(timed, key=_mix_us)
        best = rounds[0] if rounds else compilation.placed
        # Rounds before all offers were measured know of fewer candidates.
        latest = compilation.placed
        best = replace(
            best,
            candidates=latest.candidates,
            transforms_us=latest.transforms_us,
            corrections=calibration.corrections,
        )
        limit_us = self.close * best.mix_us
        close = [each.mix for each in rounds[1:] if each.mix is not None and each.mix_us < limit_us]
        close = close[: self.most_close]
        graph = compilation.imported.graph
        plans = plans_of(graph, best, close, epsilon_us, context.backends)
        concurrent = [plan for plan in compilation.plans if plan.streams is not None]
        return replace(compilation, proposal=best, plans=(*plans, *concurrent))


def _mix_us(proposal: Proposal) -> float:
    return proposal.mix_us


def _alike(placement: Placement) -> tuple[Candidate, ...]:
    """The placement's candidates without their costs, which identify a mix."""
    return tuple(replace(c, cost_us=0.0, noise_us=0.0) for c in placement.candidates)


def _with_times(proposal: Proposal, corrections: NetworkCosts, epsilon_us: float) -> Proposal:
    """The proposal with the mix's costs in the network. The placement is then the better one of the two."""
    assert proposal.mix is not None
    mix = corrections.of_mix(proposal.mix, epsilon_us)
    is_mix = proposal.placement == proposal.mix or mix.predicted_us < proposal.placement.predicted_us
    return replace(proposal, mix=mix, placement=mix if is_mix else proposal.placement)
