"""Modules within a tolerance against float32 and engines in their own precisions; and the error on other inputs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from collage.bench.compiled import Compiled, Options, compile_to
from collage.bench.pareto import Contest, curve, module_name
from collage.compiler.final_check import output_rules
from collage.core.progress import Progress
from collage.frontend.load import load_onnx
from collage.frontend.model import Model, import_model
from collage.frontend.random_inputs import random_inputs
from collage.frontend.session import Reference
from collage.measure_db.compare import Expected

DRAWS = 20
"""The number of inputs that are not among the samples."""
_SEED = 0xF7E5
SPEEDUPS = ("best_engine_over_ours", "float32_over_ours")


def precision(
    model: Path, options: Options, show: Callable[[Progress], None], *, tolerance: float
) -> dict[str, Any]:
    """Compile in float32 and within the tolerance, race both against all engines, and draw inputs for the error.

    ``speedup`` has our module's speed over the fastest engine whose error is within the tolerance, and over our own
    float32. ``draws`` are the errors on ``DRAWS`` inputs that the compile has not seen.
    """
    with tempfile.TemporaryDirectory(prefix="collage-precision-") as folder:
        files: dict[float, Path] = {}
        compiled: dict[float, Compiled] = {}
        for each in (0.0, tolerance):
            files[each] = Path(folder) / f"{each:g}.collage"
            compiled[each] = compile_to(files[each], model, options, show, tolerance=each)
        found = curve(Contest(model, files, options.threads, options.rounds), show)
        draws = errors_on_draws(model, files[tolerance])
    errors = compiled[tolerance].report.errors
    reduced = [region for region in compiled[tolerance].program.launches if region.precision]
    return {
        **found,
        "tolerance": tolerance,
        "speedup": speedups(found["points"], tolerance),
        "draws": draws,
        "predicted": None if errors is None else errors.predicted,
        "measured": None if errors is None else errors.measured,
        "reduced": len(reduced),
        "launches": len(compiled[tolerance].program.launches),
        "notes": list(compiled[tolerance].report.notes),
    }


def speedups(points: Mapping[str, Mapping[str, Any]], tolerance: float) -> dict[str, float | None]:
    """The ratios of ``precision``; None where no engine is within the tolerance."""
    ours = points[module_name(tolerance)]["median_us"]
    engines = [
        each["median_us"]
        for each in points.values()
        if "tolerance" not in each and each["error"] is not None and each["error"] <= tolerance
    ]
    return {
        "best_engine_over_ours": round(min(engines) / ours, 4) if engines else None,
        "float32_over_ours": round(points[module_name(0.0)]["median_us"] / ours, 4),
    }


def errors_on_draws(model: Path, file: Path) -> list[float]:
    """The module's errors on inputs that are drawn anew, in the units of the compile's own check."""
    from collage import api

    module, imported = api.load(file), import_model(model)
    reference = Reference(load_onnx(model))
    found = []
    for number in range(DRAWS):
        inputs = random_inputs(imported, np.random.default_rng([_SEED, number]))
        feeds = dict(zip(imported.input_names, inputs, strict=True))
        found.append(_error(imported, module.run(feeds), reference.run(feeds)))
    return found


def _error(model: Model, outputs: Mapping[str, Any], expected: list[Any]) -> float:
    return max(
        Expected.of(e, rounded=rule.rounded, channels_first=rule.channels_first).error(outputs[name])
        for name, e, rule in zip(model.output_names, expected, output_rules(model), strict=True)
    )
