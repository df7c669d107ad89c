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

EXHAUSTIVE, UNLIMITED, QUICK, SECOND = "exhaustive", "no budget", "quick", "second compile"
AGAIN = "the same again"
"""The contender that runs the best way's module in one more process: processes of one module differ, too."""


def anytime(
    model: Path,
    show: Callable[[Progress], None],
    *,
    options: Options,
    budgets: Sequence[float],
    exhaustive: bool,
) -> dict[str, Any]:
    """Compile the model in each way into a database of its own, and race the modules; times are microseconds.

    The second compile has the database of the first one without a budget.
    """
    from collage.api import default_registry

    engines = [name for name, probe in default_registry().availability().items() if probe and name in ENGINES]
    setup = prepare(model, threads=options.threads, shapes={})
    ways: dict[str, dict[str, Any]] = {QUICK: {"quick": True}}
    ways |= {f"{budget:g} s": {"budget_s": budget} for budget in budgets}
    ways[UNLIMITED] = ways[SECOND] = {"budget_s": math.inf}
    if exhaustive:
        ways[EXHAUSTIVE] = {"effort": "exhaustive", "budget_s": math.inf}
    compiles: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="collage-anytime-") as name:
        folder = Path(name)
        setups = {engine: replace(setup, engine=engine) for engine in engines}
        for number, (way, arguments) in enumerate(ways.items()):
            database = folder / (f"{number}.sqlite" if way != SECOND else f"{number - 1}.sqlite")
            fresh = replace(options, db=str(database))
            made = compile_to(folder / f"{number}.collage", model, fresh, show, **arguments)
            setups[way] = replace(setup, engine=OURS, path=str(made.file))
            compiles[way] = {
                "compile_s": round(made.report.compile_s, 3),
                "measurements": made.report.measurements_made,
                "ended": made.report.ended,
                "course": [[each.seconds, each.latency_ms, each.label] for each in made.report.best_so_far],
            }
        base = EXHAUSTIVE if exhaustive else UNLIMITED
        setups[AGAIN] = setups[base]
        expected, failed = reference(setup)
        found = race(setups, expected=expected, rounds=options.rounds, required={*ways, AGAIN}, progress=show)
    medians = {name: each["median_us"] for name, each in found.timings.items()}
    fastest = min((name for name in medians if name in engines), key=medians.__getitem__, default=None)
    return {
        "model": model.name,
        "contenders": dict(found.timings),
        "compiles": compiles,
        "share_of_best": {way: round(found.ratio(base, way), 4) for way in (*ways, AGAIN)},
        "first_module_s": compiles[UNLIMITED]["course"][0][0],
        "fastest_engine": fastest,
        "engine_load_s": found.timings[fastest]["load_s"] if fastest else None,
        "over_best_engine": {way: round(found.ratio(fastest, way), 4) if fastest else None for way in ways},
        "failed": {**failed, **found.failed},
    }
