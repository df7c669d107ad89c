"""Launches side by side against one after another and against engines, each in a process of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from collage.bench.compiled import Options, compile_to
from collage.bench.engines import OURS, prepare, reference
from collage.bench.race import race
from collage.core.progress import Progress
from collage.schedule.schedule import concurrency

SEQUENTIAL = "one after another"
ENGINES = ("openvino", "onnxruntime")


def side_by_side(model: Path, options: Options, show: Callable[[Progress], None]) -> dict[str, Any]:
    """Compile with streams and without, on the same measurements, and run both against the engines.

    Where streams lose, both modules are the same. Raises CollageError.
    """
    with tempfile.TemporaryDirectory(prefix="collage-streams-") as folder:
        files = {name: Path(folder) / f"{number}.collage" for number, name in enumerate((SEQUENTIAL, OURS))}
        compile_to(files[SEQUENTIAL], model, options, show, streams=False)
        compiled = compile_to(files[OURS], model, options, show)
        setup = prepare(model, threads=options.threads)
        setups = {name: replace(setup, engine=OURS, path=str(file)) for name, file in files.items()}
        setups |= {name: replace(setup, engine=name) for name in ENGINES}
        expected, _ = reference(setup)
        found = race(setups, expected=expected, rounds=options.rounds, required=files.keys(), progress=show)
    ours = found.timings[OURS]["median_us"]
    ordered, costs = compiled.program.ordered, [r.cost_us for r in compiled.program.launches]
    return {
        "model": model.stem,
        "engines": dict(found.timings),
        "speedup": {
            name: round(timing["median_us"] / ours, 4)
            for name, timing in found.timings.items()
            if name != OURS
        },
        "schedule": compiled.report.schedule,
        "streams": ordered.schedule.count,
        "launches": len(costs),
        "events": len(ordered.events),
        "launches_at_a_time": round(concurrency(ordered.dag, ordered.schedule, costs), 3),
        "mix": compiled.mix,
        "failed": dict(found.failed),
    }
