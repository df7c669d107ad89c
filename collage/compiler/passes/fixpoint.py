"""Fixpoint: Place and Calibrate in turn, until the proposed mix is one that was run before."""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace

from collage.backends.base import VIEW
from collage.compiler.passes.calibrate import Calibrate
from collage.compiler.passes.place import Place, without_mix
from collage.compiler.plan_failures import PlanDroppedError
from collage.compiler.state import Compilation, Context, run
from collage.core.progress import Progress
from collage.errors import NoPlacementError
from collage.search.placement import Placement

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fixpoint:
    """Runs the two passes at most ``rounds`` times, and at most ``rounds_within`` times where there is a tolerance.

    Where the mix fails as a whole, the backends of the mix are left out one at a time, until a mix runs. Where none
    does, there is no mix.
    """

    place: Place
    calibrate: Calibrate
    rounds: int = 3
    rounds_within: int = 3

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Sets what the two passes set, and ``left_out``. Raises KernelRejectedError and NoPlacementError."""
        context.progress(Progress("place", 0, 1))
        try:
            return self._rounds(context, compilation)
        except PlanDroppedError as dropped:
            log.info("the mix %s", dropped)
        compilation = self.place(context, compilation)
        for name in _backends(compilation.placed.mix):
            with suppress(PlanDroppedError, NoPlacementError):
                return self._rounds(context, replace(compilation, left_out=frozenset([name])))
        return self.calibrate(context, without_mix(context, compilation))

    def _rounds(self, context: Context, compilation: Compilation) -> Compilation:
        """Run the rounds. Raises PlanDroppedError where the first mix fails as a whole."""
        within = self.rounds_within if context.options.tolerance else self.rounds
        for _ in range(min(self.rounds, within)):
            compilation = run((self.place, self.calibrate), context, compilation)
            if compilation.calibration.converged:
                break
        return compilation


def _backends(mix: Placement | None) -> list[str]:
    """The backends of the mix, the one with the fewest nodes first."""
    counts = Counter(c.backend for c in mix.candidates for _ in c.nodes) if mix is not None else Counter()
    return sorted(counts.keys() - {VIEW}, key=lambda name: (counts[name], name))
