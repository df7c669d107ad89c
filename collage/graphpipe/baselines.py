"""The planners to compare with: PipeDream's and Piper's, whose stages form a chain.

Both have the tables, the compiled search, the micro-batches by stage, and the ranking of ``planner``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from collage.graphpipe.costs import Costs
from collage.graphpipe.planner import DEFAULTS, Found, NoPlanError, Options, plan, search
from collage.graphpipe.spaces import chain_space, closed_sets, set_space

MOST_SETS = 10_000
"""The most sets of blocks, closed under predecessors, with which Piper's planner begins."""


def pipedream(costs: Costs, options: Options = DEFAULTS) -> Found:
    """PipeDream's plan: stages are intervals of the blocks in their order. Raises NoPlanError."""
    started = time.process_time()
    return search(costs, [chain_space(costs)], "pipedream", options, started)


def piper(costs: Costs, options: Options = DEFAULTS) -> Found:
    """Piper's plan: a stage is the difference of two sets that are closed under predecessors. Raises NoPlanError."""
    started = time.process_time()
    sets = closed_sets(costs.graph, MOST_SETS)
    if sets is None:
        raise NoPlanError(f"piper was not begun: the graph has more than {MOST_SETS:,} sets closed under predecessors.")
    return search(costs, [set_space(costs, sets, chain=True)], "piper", options, started)


PLANNERS: Mapping[str, Callable[[Costs, Options], Found]] = {"graphpipe": plan, "pipedream": pipedream, "piper": piper}
