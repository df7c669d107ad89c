"""The time of stream assignment: Opara's greedy algorithm against Nimble's matching (Table I of the Opara paper)."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from collage.frontend.model import import_model
from collage.schedule.dag import Dag
from collage.schedule.nimble import nimble_streams
from collage.schedule.opara import opara_streams
from collage.schedule.schedule import Ordered, Schedule

LIMIT_MS = 3.0
LEAST_RATIO = 10.0


def assignment(model: Path, rounds: int) -> dict[str, Any]:
    """Medians over ``rounds`` in turns, in milliseconds, on the model's graph of Relax operators.

    Each round begins with a graph that nothing is known of, as after an import. Raises ModelError.
    """
    predecessors = import_model(model, name=model.stem).graph.predecessors
    times: dict[str, list[float]] = {"opara": [], "nimble": []}
    found: dict[str, tuple[int, ...]] = {}
    assign: dict[str, Callable[[Dag], tuple[int, ...]]] = {"opara": opara_streams, "nimble": nimble_streams}
    for number in range(rounds):
        for name in sorted(assign, reverse=bool(number % 2)):
            dag = Dag(predecessors)
            start = time.perf_counter()
            found[name] = assign[name](dag)
            times[name].append((time.perf_counter() - start) * 1e3)
    dag = Dag(predecessors)
    order = tuple(range(len(dag)))
    medians = {name: median(each) for name, each in times.items()}
    ratio = medians["nimble"] / medians["opara"]
    return {
        "model": model.stem,
        "operators": len(dag),
        "edges": len(dag.edges),
        "width": dag.width,
        "ms": {name: round(each, 4) for name, each in medians.items()},
        "nimble_over_opara": round(ratio, 2),
        "streams": {name: max(each, default=-1) + 1 for name, each in found.items()},
        "events": {name: len(Ordered(dag, Schedule(order, each)).events) for name, each in found.items()},
        "under_limits": medians["opara"] < LIMIT_MS and ratio >= LEAST_RATIO,
    }
