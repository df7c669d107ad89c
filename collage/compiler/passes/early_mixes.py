"""EarlyMixes: what was the best mix on the way takes part in the last comparison, too.

By the costs the last placement is the best one, so its neighbours are compared, and its launches side by side. In the
network an earlier one may still be faster: an early mix of NASNet-A took 4.9 ms where an engine took 5.4, and the last
placement took 6.4.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from collage.compiler.plan import Plan
from collage.compiler.state import Compilation, Context
from collage.measure_db.results import Rejection


@dataclass(frozen=True)
class EarlyMixes:
    """Adds early plans that are mixes, unless one of their kernels has been rejected since."""

    def __call__(self, context: Context, compilation: Compilation) -> Compilation:
        """Adds the plans."""
        bench, plans = context.workbench(compilation), compilation.plans

        def works(plan: Plan) -> bool:
            kernels = bench.assembler.assemble(plan, compilation.tunings).kernels
            outcomes = bench.measurer.kernels.known(kernels).values()
            return not any(isinstance(outcome, Rejection) for outcome in outcomes)

        kept = [
            plan
            for plan in compilation.early
            if not plan.original and not any(_is_same(plan, each) for each in plans) and works(plan)
        ]
        return replace(compilation, plans=(*plans, *kept)) if kept else compilation


def _is_same(one: Plan, other: Plan) -> bool:
    return one.label == other.label or (one.placement, one.streams) == (other.placement, other.streams)
