"""What a compile has after some seconds against what it has at its end, in one race with the engines."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from collage.bench.compiled import Options, compile_to
from collage.bench.engines import OURS, prepare, reference
from collage.bench.race import race
from collage.bench.worker import ENGINES
from collage.core.progress import Progress

EXHAUSTIVE, UNLIMITED = "exhaustive", "no budget"


def anytime(
    model: Path,
    options: Options,
    show: Callable[[Progress], None],
    *,
    budgets: Sequence[float],
    exhaustive: bool,
) -> dict[str, Any]:
    """Compile the model in each way into a database of its own, and race the modules; times are microseconds."""
    from collage.api import default_registry

    engines = [name for name, probe in default_registry().availability().items() if probe and name in ENGINES]
    setup = prepare(model, threads=options.threads, shapes={})
    ways: dict[str, dict[str, Any]] = {f"{budget:g} s": {"budget_s": budget} for budget in budgets}
    ways[UNLIMITED] = {"budget_s": math.inf}
    if exhaustive:
        ways[EXHAUSTIVE] = {"effort": "exhaustive", "budget_s": math.inf}
    compiles: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="collage-anytime-") as name:
        folder = Path(name)
        setups = {engine: replace(setup, engine=engine) for engine in engines}
        for number, (way, arguments) in enumerate(ways.items()):
            fresh = replace(options, db=str(folder / f"{number}.sqlite"))
            made = compile_to(folder / f"{number}.collage", model, fresh, show, **arguments)
            setups[way] = replace(setup, engine=OURS, path=str(made.file))
            compiles[way] = {
                "compile_s": round(made.report.compile_s, 3),
                "measurements": made.report.measurements_made,
                "ended": made.report.ended,
                "course": [[each.seconds, each.latency_ms, each.label] for each in made.report.best_so_far],
            }
        expected, failed = reference(setup)
        found = race(setups, expected=expected, rounds=options.rounds, required=set(ways), progress=show)
    medians = {name: each["median_us"] for name, each in found.timings.items()}
    base = medians[EXHAUSTIVE if exhaustive else UNLIMITED]
    best_engine = min((us for name, us in medians.items() if name not in ways), default=None)
    return {
        "model": model.name,
        "contenders": dict(found.timings),
        "compiles": compiles,
        "share_of_best": {way: round(base / medians[way], 4) for way in ways},
        "over_best_engine": {
            way: round(best_engine / medians[way], 4) if best_engine else None for way in ways
        },
        "failed": {**failed, **found.failed},
    }
