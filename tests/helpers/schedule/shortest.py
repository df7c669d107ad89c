"""The shortest schedule of launches on two threads, by integer programming, to compare the heuristic with."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np

from collage.errors import CollageError
from collage.schedule.dag import Dag
from collage.schedule.timeline import Costs


def shortest_us(dag: Dag, costs: Costs) -> float:
    """The end of the last launch in the best schedule for two threads, in microseconds.

    Barriers and events cost nothing. The mixed-integer program has for each launch when it begins, whether it is
    single-threaded, and on which thread. For each pair that does not depend on each other it has whether both run at
    the same time, and which is first where they do not. It needs scipy (the extra ``exact``), and suits a dozen
    launches at most. Raises CollageError when the solver gives up or scipy is missing.
    """
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp
    except ImportError as error:
        raise CollageError("the exact schedule needs scipy: pip install 'collage-compiler[exact]'") from error
    count = len(dag)
    if not count:
        return 0.0
    pairs = [(u, v) for u, v in combinations(range(count), 2) if dag.independent(u, v)]
    # Columns: the end; begins; single; thread; for each pair whether they run at once, and whether u is first.
    begin, single, thread, at_once = 1, 1 + count, 1 + 2 * count, 1 + 3 * count
    first = at_once + len(pairs)
    columns = first + len(pairs)
    team = np.array(costs.team_us)
    shorter = np.array([0.0 if a is None else a for a in costs.single_threaded_us]) - team
    much = float(np.maximum(team, team + shorter).sum())
    rows: list[dict[int, float]] = []
    least: list[float] = []

    def require(bound: float, **terms: float) -> None:
        rows.append({int(name[1:]): factor for name, factor in terms.items()})
        least.append(bound)

    def after(v: int, u: int, slack: dict[str, float], relief: float) -> None:
        """v begins when u has ended: begin_v - begin_u - time_u + slack >= -relief."""
        terms = {f"c{begin + v}": 1.0, f"c{begin + u}": -1.0, f"c{single + u}": -float(shorter[u])}
        require(float(team[u]) - relief, **terms, **slack)

    for v in range(count):
        require(float(team[v]), c0=1.0, **{f"c{begin + v}": -1.0, f"c{single + v}": -float(shorter[v])})
    for u, v in dag.edges:
        after(v, u, {}, 0.0)
    for i, (u, v) in enumerate(pairs):
        both, order = f"c{at_once + i}", f"c{first + i}"
        after(v, u, {both: much, order: -much}, much)
        after(u, v, {both: much, order: much}, 0.0)
        for w in (u, v):
            require(0.0, **{f"c{single + w}": 1.0, both: -1.0})
        require(0.0, **{f"c{thread + u}": 1.0, f"c{thread + v}": 1.0, both: -1.0})
        require(-2.0, **{f"c{thread + u}": -1.0, f"c{thread + v}": -1.0, both: -1.0})
    matrix = np.zeros((len(rows), columns))
    for row, terms in zip(matrix, rows, strict=True):
        for column, factor in terms.items():
            row[column] = factor
    upper = np.ones(columns)
    upper[: 1 + count] = np.inf
    for v, us in enumerate(costs.single_threaded_us):
        upper[single + v] = 0.0 if us is None else 1.0
    integral = np.ones(columns)
    integral[: 1 + count] = 0
    goal = np.zeros(columns)
    goal[0] = 1
    constraints: Any = LinearConstraint(matrix, np.array(least), np.inf)
    result = milp(goal, constraints=constraints, bounds=Bounds(np.zeros(columns), upper), integrality=integral)
    if not result.success:
        raise CollageError(f"the exact solver gave up: {result.message}")
    return float(result.fun)
