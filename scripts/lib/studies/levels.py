"""Op level against graph level (Figure 2.10), and both against the engines, in one race."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from collage.bench.compiled import Options, compile_to
from collage.bench.engines import OURS, prepare, reference
from collage.bench.race import race
from collage.bench.worker import ENGINES
from collage.core.progress import Progress
from collage.report.report import GraphLevelReport

OP, GRAPH = "collage, op level", "collage, graph level"

NO_SEARCH = GraphLevelReport(0, 0, 0, 0.0, 1.0, "the model runs whole on one engine", ((0.0, 1.0),))


def levels(
    model: Path,
    options: Options,
    show: Callable[[Progress], None],
    *,
    budget_s: float,
    shapes: Mapping[str, Sequence[int]],
) -> dict[str, Any]:
    """Compile at both levels and run the modules against each engine on the model; times are microseconds.

    ``speedup`` has the best engine's median over each level's, and the op level's over the graph level's.
    """
    from collage.api import default_registry

    engines = [name for name, probe in default_registry().availability().items() if probe and name in ENGINES]
    setup = prepare(model, threads=options.threads, shapes=shapes)
    arguments: dict[str, Any] = {"shapes": shapes}
    with tempfile.TemporaryDirectory(prefix="collage-levels-") as folder:
        op = compile_to(Path(folder) / "op.collage", model, options, show, **arguments)
        arguments |= {"level": "graph", "budget_s": budget_s}
        graph = compile_to(Path(folder) / "graph.collage", model, options, show, **arguments)
        setups = {
            OP: replace(setup, engine=OURS, path=str(op.file)),
            GRAPH: replace(setup, engine=OURS, path=str(graph.file)),
            **{name: replace(setup, engine=name) for name in engines},
        }
        expected, failed = reference(setup)
        found = race(setups, expected=expected, rounds=options.rounds, required={OP, GRAPH}, progress=show)
    search = graph.report.graph_level or NO_SEARCH
    return {
        "model": model.name,
        "contenders": dict(found.timings),
        "speedup": speedups({name: each["median_us"] for name, each in found.timings.items()}),
        "search": {
            "genes": search.genes,
            "trials": search.trials,
            "seconds": search.seconds,
            "ended": search.ended,
            "history": [[seconds, round(1 / times, 4)] for seconds, times in search.history],
        },
        "winner": {"op": winner(op.report.finalists), "graph": winner(graph.report.finalists)},
        "mix": {"op": op.mix, "graph": graph.mix},
        "failed": {**failed, **found.failed},
    }


def speedups(medians: Mapping[str, float]) -> dict[str, float | None]:
    """The ratios of ``levels``; None where no engine ran the model."""
    engines = [us for name, us in medians.items() if name not in (OP, GRAPH)]
    best = min(engines) if engines else None
    return {
        "best_engine_over_op": round(best / medians[OP], 4) if best else None,
        "best_engine_over_graph": round(best / medians[GRAPH], 4) if best else None,
        "op_over_graph": round(medians[OP] / medians[GRAPH], 4),
    }


def winner(finalists: Mapping[str, Mapping[str, float]]) -> str:
    """The finalist with the least median."""
    return min(finalists, key=lambda name: finalists[name]["median_us"])
