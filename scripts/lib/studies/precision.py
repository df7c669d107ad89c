"""Modules within a tolerance against float32 and engines in their own precisions; and the error on other inputs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from collage.bench.pareto import ParetoRace, curve, module_name
from collage.compiler.accuracy import Asked as Inputs
from collage.compiler.metrics import Metric
from collage.core.progress import Progress
from scripts.lib.studies.compiled import Compiled, Options, compile_to

PROCESSES = 3
"""The number of processes that each contender has, one after another."""
_USUAL = 1.3
"""A round that takes a contender more than this many times its lower quartile was disturbed."""
_FEWEST = 0.25
"""Where fewer rounds than this share of them were undisturbed, all count."""
DRAWS = 20
"""The number of inputs that are not among the samples."""
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
    The errors of all are on inputs that the compile has not seen. ``draws`` are those of our module, and ``real`` tells
    whether these and the samples are real ones.
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
        others = Inputs(0.0, Metric(), tuple(subject.draws[: asked.draws]), asked.draws)
        contest = ParetoRace(
            *(subject.file, files, options.threads, options.rounds),
            processes=min(PROCESSES, options.rounds),
            shapes=subject.shapes,
            asked=others,
        )
        found = curve(contest, show)
    ours = compiled[asked.tolerance]
    errors = ours.report.errors
    return {
        **found,
        "tolerance": asked.tolerance,
        "real": bool(subject.samples),
        "speedup": speedups(found["points"], asked.tolerance),
        "undisturbed": len(undisturbed_rounds(found["points"][module_name(asked.tolerance)]["rounds_us"])),
        "draws": found["points"][module_name(asked.tolerance)]["errors"],
        "left_out": left_out(found["points"], asked.tolerance),
        "predicted": None if errors is None else errors.predicted,
        "measured": None if errors is None else errors.measured,
        "reduced": sum(1 for region in ours.program.executed if region.precision),
        "launches": len(ours.program.executed),
        "compile_s": {module_name(each): round(one.report.compile_s, 1) for each, one in compiled.items()},
        "ended": ours.report.ended,
        "notes": list(ours.report.notes),
    }


def speedups(points: Mapping[str, Mapping[str, Any]], tolerance: float) -> dict[str, float | None]:
    """The ratios of ``precision``; None where no engine counts, or float32 was left out.

    A ratio is the median of those of the rounds in which neither was disturbed (see ``undisturbed_rounds``). An engine
    counts where no more of its errors are beyond the tolerance than of our module's.
    """
    ours = points[module_name(tolerance)]
    most = _beyond(ours, tolerance)
    engines = [_over(each, ours) for each in _engines(points).values() if _beyond(each, tolerance) <= most]
    own = points.get(module_name(0.0))
    return {
        "best_engine_over_ours": min(engines, default=None),
        "float32_over_ours": None if own is None else _over(own, ours),
    }


def left_out(points: Mapping[str, Mapping[str, Any]], tolerance: float) -> dict[str, dict[str, float]]:
    """The engines that do not count, although most of their errors are within the tolerance.

    Each with its time over ours in the race (``over_ours``) and the number of errors ``beyond`` the tolerance.
    """
    ours = points[module_name(tolerance)]
    return {
        name: {
            "over_ours": _over(each, ours),
            "beyond": _beyond(each, tolerance),
        }
        for name, each in _engines(points).items()
        if median(each["errors"]) <= tolerance and _beyond(each, tolerance) > _beyond(ours, tolerance)
    }


def undisturbed_rounds(*each_us: Sequence[float]) -> list[int]:
    """The rounds in which all took their usual time, given the times of each; all rounds where these are too few.

    A machine that is shared takes a core away for seconds or minutes, which costs one contender more than another.
    """
    usual = [_USUAL * float(np.quantile(found, 0.25)) for found in each_us]
    kept = [
        number
        for number, times in enumerate(zip(*each_us, strict=True))
        if all(us <= most for us, most in zip(times, usual, strict=True))
    ]
    count = len(each_us[0])
    return kept if len(kept) >= _FEWEST * count else list(range(count))


def _over(point: Mapping[str, Any], ours: Mapping[str, Any]) -> float:
    """The time of a point divided by ours: the median of the ratios of the undisturbed rounds."""
    one, other = point["rounds_us"], ours["rounds_us"]
    return round(float(median(one[each] / other[each] for each in undisturbed_rounds(one, other))), 4)


def _engines(points: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {name: each for name, each in points.items() if "tolerance" not in each}


def _beyond(point: Mapping[str, Any], tolerance: float) -> int:
    return sum(not error <= tolerance for error in point["errors"])  # what is no number is beyond, too
