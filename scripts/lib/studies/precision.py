"""Modules within a tolerance against float32 and engines in their own precisions; and the error on other inputs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from collage.bench.compiled import Compiled, Options, compile_to
from collage.bench.engines import OURS
from collage.bench.pareto import Contest, curve, module_name
from collage.bench.worker import OPENVINO_BF16, REDUCED_ENGINES
from collage.compiler.final_check import OutputRule, output_rules
from collage.core.progress import Progress
from collage.errors import ModelError
from collage.frontend.load import load_onnx
from collage.frontend.model import Model, import_model
from collage.frontend.random_inputs import random_inputs
from collage.frontend.session import Reference
from collage.frontend.shapes import fix_shapes
from collage.graph.storage import BF16
from collage.kernel.options import BuildOptions, Variant
from collage.measure_db.compare import Expected

if TYPE_CHECKING:
    from onnx import ModelProto

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

    ``speedup`` has our module's speed over the fastest engine that is within the tolerance, and over our own float32.
    ``draws`` are the errors on inputs that the compile has not seen, ``engines_draws`` those of engines in reduced
    precision on the same, and ``real`` tells whether these and the samples are real ones.
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
        draws = errors_on_draws(subject, files[asked.tolerance], asked.draws, options.threads)
    ours = compiled[asked.tolerance]
    errors = ours.report.errors
    return {
        **found,
        "tolerance": asked.tolerance,
        "real": bool(subject.samples),
        "speedup": speedups(found["points"], asked.tolerance, draws),
        "draws": draws[OURS],
        "engines_draws": {name: errors for name, errors in draws.items() if name != OURS},
        "left_out": left_out(found["points"], asked.tolerance, draws),
        "predicted": None if errors is None else errors.predicted,
        "measured": None if errors is None else errors.measured,
        "reduced": sum(1 for region in ours.program.executed if region.precision),
        "launches": len(ours.program.executed),
        "compile_s": {module_name(each): round(one.report.compile_s, 1) for each, one in compiled.items()},
        "ended": ours.report.ended,
        "notes": list(ours.report.notes),
    }


def speedups(
    points: Mapping[str, Mapping[str, Any]],
    tolerance: float,
    draws: Mapping[str, Sequence[float]] | None = None,
) -> dict[str, float | None]:
    """The ratios of ``precision``; None where no engine is within the tolerance, or float32 was left out.

    An engine is within it where its error in the race is, and no more of the ``draws`` are beyond it than with our
    module.
    """
    without = left_out(points, tolerance, draws or {})
    ours = points[module_name(tolerance)]["median_us"]
    engines = [each["median_us"] for name, each in _in_race(points, tolerance).items() if name not in without]
    own = points.get(module_name(0.0))
    return {
        "best_engine_over_ours": round(min(engines) / ours, 4) if engines else None,
        "float32_over_ours": None if own is None else round(own["median_us"] / ours, 4),
    }


def left_out(
    points: Mapping[str, Mapping[str, Any]], tolerance: float, draws: Mapping[str, Sequence[float]]
) -> dict[str, dict[str, float]]:
    """Engines that are within the tolerance in the race and beyond it on more draws than our module.

    Each with its time over ours in the race (``over_ours``) and the number of draws ``beyond`` the tolerance.
    """
    beyond = {name: sum(error > tolerance for error in errors) for name, errors in draws.items()}
    ours = points[module_name(tolerance)]["median_us"]
    return {
        name: {"over_ours": round(each["median_us"] / ours, 4), "beyond": beyond[name]}
        for name, each in _in_race(points, tolerance).items()
        if beyond.get(name, 0) > beyond.get(OURS, 0)
    }


def _in_race(points: Mapping[str, Mapping[str, Any]], tolerance: float) -> dict[str, Mapping[str, Any]]:
    """The engines whose error in the race is within the tolerance."""
    return {
        name: each
        for name, each in points.items()
        if "tolerance" not in each and each["error"] is not None and each["error"] <= tolerance
    }


def errors_on_draws(subject: Subject, file: Path, count: int, threads: int) -> dict[str, list[float]]:
    """The errors of the module and of engines in reduced precision on inputs that the compile has not seen.

    Inputs are those of the subject, or drawn anew. Errors have the units of the compile's own check. An engine that
    cannot run the model so is left out.
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
    expected = [reference.run(each) for each in feeds]

    def errors_of(run: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> list[float]:
        return [_error(names, rules, run(feed), e) for feed, e in zip(feeds, expected, strict=True)]

    found = {OURS: errors_of(module.run)}
    for name in REDUCED_ENGINES:
        with suppress(Exception):  # an engine may raise anything, and the race has told of it
            found[name] = errors_of(_engine(name, original, threads))
    return found


def _engine(name: str, model: ModelProto, threads: int) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """A function that runs the model on an engine in reduced precision."""
    from collage.backends.dynamic_quantisation import quantised
    from collage.backends.onnxruntime import OnnxRuntime
    from collage.backends.openvino import OpenVino

    inputs, outputs = ([each.name for each in side] for side in (model.graph.input, model.graph.output))
    options = BuildOptions(threads=threads, variant=Variant(precision=BF16))
    session = (
        OpenVino().session(model.SerializeToString(), options)
        if name == OPENVINO_BF16
        else OnnxRuntime().session(quantised(model).SerializeToString(), BuildOptions(threads=threads))
    )

    def run(feed: Mapping[str, Any]) -> Mapping[str, Any]:
        return dict(zip(outputs, session.run([np.asarray(feed[each]) for each in inputs]), strict=True))

    return run


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
