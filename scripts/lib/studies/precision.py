"""Modules within a tolerance against float32 and engines in their own precisions; and the error on other inputs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from collage.bench.compiled import Compiled, Options, compile_to
from collage.bench.pareto import Contest, curve, module_name
from collage.compiler.final_check import OutputRule, output_rules
from collage.core.progress import Progress
from collage.errors import ModelError
from collage.frontend.load import load_onnx
from collage.frontend.model import Model, import_model
from collage.frontend.random_inputs import random_inputs
from collage.frontend.session import Reference
from collage.frontend.shapes import fix_shapes
from collage.measure_db.compare import Expected

DRAWS = 20
"""The number of inputs that are not among the samples."""
_SEED = 0xF7E5
SPEEDUPS = ("best_engine_over_ours", "float32_over_ours")


@dataclass(frozen=True)
class Subject:
    """A model with shapes of its inputs, samples for the compile, and other inputs; both may be made up."""

    file: Path
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    samples: Sequence[Mapping[str, Any]] = ()
    draws: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Asked:
    """What is compared. Without ``float32`` our own float32 is left out, which saves half of the compiles.

    ``draws`` is the number of inputs that the compile has not seen, and ``budget_s`` the seconds of each compile.
    """

    tolerance: float
    draws: int = DRAWS
    float32: bool = True
    budget_s: float | None = None


def precision(
    subject: Subject, show: Callable[[Progress], None], *, asked: Asked, options: Options
) -> dict[str, Any]:
    """Compile in float32 and within the tolerance, race both against all engines, and draw inputs for the error.

    ``speedup`` has our module's speed over the fastest engine whose error is within the tolerance, and over our own
    float32. ``draws`` are the errors on inputs that the compile has not seen, and ``real`` tells whether these and the
    samples are real ones.
    """
    with tempfile.TemporaryDirectory(prefix="collage-precision-") as folder:
        files: dict[float, Path] = {}
        compiled: dict[float, Compiled] = {}
        for each in (0.0, asked.tolerance) if asked.float32 else (asked.tolerance,):
            files[each] = Path(folder) / f"{each:g}.collage"
            compiled[each] = compile_to(
                files[each],
                subject.file,
                options,
                show,
                tolerance=each,
                shapes=subject.shapes,
                inputs=subject.samples or None,
                budget_s=asked.budget_s,
            )
        seen = subject.draws[0] if subject.draws else {}
        contest = Contest(
            subject.file, files, options.threads, options.rounds, shapes=subject.shapes, inputs=seen
        )
        found = curve(contest, show)
        draws = errors_on_draws(subject, files[asked.tolerance], asked.draws)
    ours = compiled[asked.tolerance]
    errors = ours.report.errors
    return {
        **found,
        "tolerance": asked.tolerance,
        "real": bool(subject.samples),
        "speedup": speedups(found["points"], asked.tolerance),
        "draws": draws,
        "predicted": None if errors is None else errors.predicted,
        "measured": None if errors is None else errors.measured,
        "reduced": sum(1 for region in ours.program.executed if region.precision),
        "launches": len(ours.program.executed),
        "compile_s": {module_name(each): round(one.report.compile_s, 1) for each, one in compiled.items()},
        "ended": ours.report.ended,
        "notes": list(ours.report.notes),
    }


def speedups(points: Mapping[str, Mapping[str, Any]], tolerance: float) -> dict[str, float | None]:
    """The ratios of ``precision``; None where no engine is within the tolerance, or float32 was left out."""
    ours = points[module_name(tolerance)]["median_us"]
    engines = [
        each["median_us"]
        for each in points.values()
        if "tolerance" not in each and each["error"] is not None and each["error"] <= tolerance
    ]
    own = points.get(module_name(0.0))
    return {
        "best_engine_over_ours": round(min(engines) / ours, 4) if engines else None,
        "float32_over_ours": None if own is None else round(own["median_us"] / ours, 4),
    }


def errors_on_draws(subject: Subject, file: Path, count: int) -> list[float]:
    """The module's errors on inputs that it has not seen, in the units of the compile's own check.

    They are those of the subject, or drawn anew.
    """
    from collage import api

    original = load_onnx(subject.file)
    fix_shapes(original, subject.shapes)
    module, reference = api.load(file), Reference(original)
    try:
        imported = import_model(original)
    except ModelError:  # an engine runs it whole, and made-up inputs are of no use
        imported = None
    feeds = [dict(each) for each in subject.draws[:count]]
    if not feeds and imported is not None:
        feeds = [_made_up(imported, number) for number in range(count)]
    names = [each.name for each in original.graph.output]
    rules = [OutputRule(0.0, False, False) for _ in names] if imported is None else [*output_rules(imported)]
    return [_error(names, rules, module.run(each), reference.run(each)) for each in feeds]


def _made_up(model: Model, number: int) -> dict[str, Any]:
    inputs = random_inputs(model, np.random.default_rng([_SEED, number]))
    return dict(zip(model.input_names, inputs, strict=True))


def _error(
    names: Sequence[str], rules: Sequence[OutputRule], outputs: Mapping[str, Any], expected: Sequence[Any]
) -> float:
    return max(
        Expected.of(e, rounded=rule.rounded, channels_first=rule.channels_first).error(outputs[name])
        for name, e, rule in zip(names, expected, rules, strict=True)
    )
