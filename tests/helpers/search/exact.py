"""The op-level problem as an integer program, which gives an independent answer to check the dynamic program with.

It is set partitioning: there is one binary variable for each candidate, each node is in exactly one chosen candidate,
and the sum of the charges is minimal (Eq. 2.1 with the cost of Eq. 2.2). A layout transform is a variable that cannot
be 0 when one chosen candidate writes a value in one storage and another one reads it in the other. When a solution has
a circle, a constraint excludes that circle, and the program is solved again. Nothing that the dynamic program knows
about circles is used here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from scipy import optimize, sparse

from collage.errors import CollageError
from collage.graph.convexity import CyclicPlacementError
from collage.graph.dataflow import Graph
from collage.graph.storage import PLAIN, Storage
from collage.kernel.transform import LayoutTransform
from collage.search.candidate import Candidate
from collage.search.placement import NO_TRANSFORMS, Placement, charge_us, contenders, finish, no_cover
from collage.search.transforms import ValueTransform

_INFEASIBLE = 2
"""``scipy.optimize.milp``'s status for a problem without a solution."""


def place_exact(
    graph: Graph,
    candidates: Sequence[Candidate],
    epsilon_us: float,
    *,
    margin: float = 0.0,
    transforms_us: Mapping[ValueTransform, float] = NO_TRANSFORMS,
    budget: float | None = None,
) -> Placement:
    """The placement with the least sum of charges and layout transforms, like ``dp.place``.

    With a ``budget`` the errors of its candidates add up to no more, as in ``dp_budget.place_within``.

    Raises ``NoPlacementError`` if no placement exists, and ``CollageError`` if the solver gives up.
    """
    usable = contenders(graph, candidates, epsilon_us, margin)
    if not usable:
        return finish(graph, (), epsilon_us)
    demands = list(_demands(graph, usable))
    transforms = sorted({each for each, _ in demands if each in transforms_us}, key=str)
    width = len(usable) + len(transforms)
    rows = [node for candidate in usable for node in candidate.nodes]
    columns = [index for index, candidate in enumerate(usable) for _ in candidate.nodes]
    covers = sparse.csr_array((np.ones(len(rows)), (rows, columns)), shape=(len(graph.nodes), width))
    constraints = [optimize.LinearConstraint(covers, 1, 1)]
    for each, needing in demands:  # not all of these candidates, unless the transform is chosen, too
        columns = [*needing, *([len(usable) + transforms.index(each)] if each in transforms_us else [])]
        row = sparse.csr_array(
            ([1.0] * len(needing) + [-1.0] * (len(columns) - len(needing)), ([0] * len(columns), columns)),
            shape=(1, width),
        )
        constraints.append(optimize.LinearConstraint(row, -np.inf, len(needing) - 1))
    if budget is not None:
        errors = [candidate.error for candidate in usable] + [0.0] * len(transforms)
        constraints.append(optimize.LinearConstraint(np.array([errors]), -np.inf, budget))
    charges = np.array(
        [charge_us(candidate, epsilon_us, margin) for candidate in usable]
        + [transforms_us[each] for each in transforms]
    )
    while True:
        result = optimize.milp(
            charges,
            integrality=np.ones(width),
            bounds=optimize.Bounds(0, 1),
            constraints=constraints,
            options={"mip_rel_gap": 0.0},
        )
        if result.status == _INFEASIBLE:
            raise no_cover(graph)
        if result.x is None:
            raise CollageError(f"the exact solver gave up: {result.message}")
        taken = [index for index, amount in enumerate(result.x[: len(usable)]) if amount > 0.5]
        try:
            return finish(graph, [usable[index] for index in taken], epsilon_us, transforms_us=transforms_us)
        except CyclicPlacementError as error:
            circle = [taken[part] for part in error.cycle]
            row = sparse.csr_array((np.ones(len(circle)), ([0] * len(circle), circle)), shape=(1, width))
            constraints.append(optimize.LinearConstraint(row, -np.inf, len(circle) - 1))


def _demands(graph: Graph, usable: Sequence[Candidate]) -> Iterator[tuple[ValueTransform, tuple[int, ...]]]:
    """Layout transforms, each with the candidates (one or two, by index) that need it when they are all chosen."""
    written: dict[int, list[tuple[Storage, tuple[int, ...]]]] = {}
    wants: dict[int, list[tuple[Storage, tuple[int, ...]]]] = {v: [(PLAIN, ())] for v in graph.outputs}
    for value in graph.inputs:
        written[value] = [(PLAIN, ())]
    for index, candidate in enumerate(usable):
        inside = set(candidate.nodes)
        reads, writes = dict(candidate.reads), dict(candidate.writes)
        for node in candidate.nodes:
            for value in graph.nodes[node].outputs:
                written.setdefault(value, []).append((writes.get(value, PLAIN), (index,)))
            for value in dict.fromkeys(graph.nodes[node].inputs):
                if graph.values[value].producer not in inside and not graph.is_constant(value):
                    wants.setdefault(value, []).append((reads.get(value, PLAIN), (index,)))
    for value, wanted in wants.items():
        for target, reader in wanted:
            for source, writer in written[value]:
                if source != target and writer != reader:
                    yield (
                        (value, LayoutTransform(graph.type_of(value), source, target)),
                        tuple(dict.fromkeys((*writer, *reader))),
                    )
