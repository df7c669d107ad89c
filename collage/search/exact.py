"""The op-level problem as an integer program: an independent answer to check the dynamic program with.

Set partitioning: one binary variable per candidate, each node in exactly one candidate that is taken,
least sum of the charges (Eq. 2.1 with the cost of Eq. 2.2). Circles are cut off as they turn up: of the
candidates of a circle at least one must go. This uses nothing of what the dynamic program knows about which
candidates can be in a circle.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from collage.errors import CollageError
from collage.graph.convexity import CyclicPlacementError
from collage.graph.dataflow import Graph
from collage.search.placement import (
    Candidate,
    Placement,
    charge_us,
    contenders,
    finish,
    no_cover,
)

_INFEASIBLE = 2
"""``scipy.optimize.milp``'s status for a problem without a solution."""


def place_exact(
    graph: Graph, candidates: Sequence[Candidate], epsilon_us: float, *, margin: float = 0.0
) -> Placement:
    """The placement with the least sum of ``cost_us + epsilon_us + margin * noise_us``, like ``dp.place``.

    Needs scipy (the extra ``exact``). Raises ``NoPlacementError`` when no placement exists.
    """
    optimize, sparse = _scipy()
    usable = contenders(graph, candidates, epsilon_us, margin)
    if not usable:
        return finish(graph, (), epsilon_us)
    rows = [node for candidate in usable for node in candidate.nodes]
    columns = [index for index, candidate in enumerate(usable) for _ in candidate.nodes]
    covers = sparse.csr_array((np.ones(len(rows)), (rows, columns)), shape=(len(graph.nodes), len(usable)))
    constraints = [optimize.LinearConstraint(covers, 1, 1)]
    charges = np.array([charge_us(candidate, epsilon_us, margin) for candidate in usable])
    while True:
        result = optimize.milp(
            charges,
            integrality=np.ones(len(usable)),
            bounds=optimize.Bounds(0, 1),
            constraints=constraints,
            options={"mip_rel_gap": 0.0},
        )
        if result.status == _INFEASIBLE:
            raise no_cover(graph)
        if result.x is None:
            raise CollageError(f"the exact solver gave up: {result.message}")
        taken = [index for index, amount in enumerate(result.x) if amount > 0.5]
        try:
            return finish(graph, [usable[index] for index in taken], epsilon_us)
        except CyclicPlacementError as error:
            circle = [taken[part] for part in error.cycle]
            row = sparse.csr_array(
                (np.ones(len(circle)), ([0] * len(circle), circle)), shape=(1, len(usable))
            )
            constraints.append(optimize.LinearConstraint(row, -np.inf, len(circle) - 1))


def _scipy() -> tuple[Any, Any]:
    try:
        return import_module("scipy.optimize"), import_module("scipy.sparse")
    except ImportError as error:
        raise CollageError("the exact solver needs scipy: pip install 'collage[exact]'") from error
