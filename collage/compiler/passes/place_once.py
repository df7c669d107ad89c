"""Place once: the fastest cover of the graph by what is known. It suggests no candidates, and measures no kernels."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from collage.compiler.by_known import candidates_in, transform_costs_us
from collage.compiler.cheapest import cheapest
from collage.compiler.events import Searched
from collage.compiler.plan import QUICK, Plan
from collage.compiler.proposal import Proposal
from collage.compiler.state import Compilation, Context


@dataclass(frozen=True)
class PlaceOnce:
    """Places the model by dynamic programming, by times measured alone, and mostly with values in the plain format.

    Where candidates compute on several devices or in several formats, what is between them is measured. The placement
    is the only plan. A pass that is not ``guarded`` leaves out kernels that are right on finite numbers only.
    """

    guarded: bool = True

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Sets the proposal and the plan. Raises NoPlacementError."""
        candidates = candidates_in(context, compilation, compilation.outcomes)
        usable = [c for c in candidates if not c.outrun and (self.guarded or not c.finite_only)]
        measurer = context.workbench(compilation).measurer
        copies_us = transform_costs_us(measurer, compilation, usable, measurer.measure_transforms)
        started = time.perf_counter()
        placement = cheapest(context, compilation, usable, copies_us)
        proposal = Proposal(placement, None, tuple(candidates), copies_us)
        plan = Plan(QUICK, placement, exclusive=len(placement.candidates) == 1)
        return replace(compilation, proposal=proposal, plans=(plan,)).told(
            Searched(time.perf_counter() - started)
        )
