"""One network: compiled as a user does it, then raced against engines in several restarts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from collage.bench.engines import OURS, prepare, reference, setup_for
from collage.bench.race import Errors, Race, race
from collage.bench.worker import ENGINES, Setup
from collage.frontend.read.external_data import without_links
from collage.measure.prior import WITHOUT_VARIABLE
from collage.report.best_so_far import FINISHED
from scripts.lib import say
from scripts.lib.bench.common import Options, Show, run_collage
from scripts.lib.bench.ratios import Ratios
from scripts.lib.errors import largest, scaled_error

if TYPE_CHECKING:
    from scripts.lib.bench.networks import Network

BEFORE = "before"
"""The contender that another version or other options have made."""
_RESTARTS, _MOST_RESTARTS = 5, 15


@dataclass(frozen=True)
class Study:
    """The options of a comparison. ``contenders`` are engines and functions by name, without Collage.

    Without a number of ``restarts`` there are more if an interval is wide.
    """

    options: Options
    contenders: Mapping[str, str]
    restarts: int | None
    quick: bool
    before: Path | None


def compare(name: str, network: Network, study: Study, show: Show) -> dict[str, Any]:
    """Compile a network and race it; the object of one model in the JSON of ``scripts/bench cpu``."""
    with TemporaryDirectory(prefix="collage-bench-") as folder:
        module = Path(folder) / "module.collage"
        compiled = _compile(network, module, study)
        first = seconds_text(compiled["first_mix_s"])
        say(f"{name}: {compiled['label']} after {compiled['compile_s']:.1f} s, first mix {first}")
        modules = {OURS: module}
        if study.before and (before := study.before / f"{Path(name).name.removesuffix('.onnx')}.collage").exists():
            modules[BEFORE] = before
        return {"model": name, **compiled, **_raced(network, modules, compiled["inputs"], study, show)}


def seconds_text(seconds: float | None) -> str:
    """Seconds, or a dash."""
    return "-" if seconds is None else f"{seconds:.1f} s"


def is_engine(label: str) -> bool:
    """Whether a plan of this label is an engine on the whole model: its label begins with the engine's name."""
    return label.partition(",")[0].partition(" ")[0] in ENGINES.keys() - {OURS}


def _compile(network: Network, module: Path, study: Study) -> dict[str, Any]:
    """Compile in a process of its own, and once more if that ended by itself.

    What Collage's file of losses knows of this very network is left out.
    """
    options = study.options
    command: list[object] = ["compile", network.file, "--threads", options.threads]
    command += ["--db", options.db or module.with_name("db.sqlite")]
    command += ["--quick"] if study.quick else []
    command += ["--budget", options.budget_s] if options.budget_s else []
    for name, shape in network.shapes.items():
        command += ["--shape", f"{name}:{'x'.join(map(str, shape))}"]
    started = time.perf_counter()
    without = {WITHOUT_VARIABLE: network.file.stem}
    report = run_collage(*command, "-o", module, variables=without)
    process_s = time.perf_counter() - started
    again = None
    if report["ended"] == FINISHED:
        again = run_collage(*command, "-o", module.with_name("again.collage"), variables=without)
    course = report["best_so_far"]
    mix = report["first_mix"]
    kept = "inputs compile_s ended budget_s measurements_made spent_s best_so_far predicted_us measured_us".split()
    return {
        **{key: report[key] for key in kept},
        "process_s": round(process_s, 3),
        "first_module_s": course[0]["seconds"] if course else None,
        "first_mix_s": mix["seconds"] if mix else None,
        "first_mix_share": round(course[-1]["latency_ms"] / mix["latency_ms"], 4) if mix and course else None,
        "label": _label(report),
        "mix": dict(Counter(region["backend"] for region in report["regions"]).most_common()),
        "again": again and {key: again[key] for key in ("compile_s", "measurements_made")},
    }


def _label(report: Mapping[str, Any]) -> str:
    """The label of the plan that was handed over: the finalist of the module's time, or the last of the course."""
    measured = report["measured_us"] or 0.0
    finalists = {name: abs(each["median_us"] - measured) for name, each in report["finalists"].items()}
    course = [each["label"] for each in report["best_so_far"]]
    return str(min(finalists, key=finalists.__getitem__) if finalists else (course or ["-"])[-1])


def _raced(
    network: Network,
    modules: Mapping[str, Path],
    inputs: Mapping[str, Sequence[int]],
    study: Study,
    show: Show,
) -> dict[str, Any]:
    """Race modules and contenders until there are enough restarts.

    ``ratios`` are times over Collage's. The fastest contender is the one with the least ratio.
    """
    setup = prepare(network.file, threads=study.options.threads, shapes=network.shapes, open_shapes=inputs)
    if network.inputs:
        setup = replace(setup, inputs={name: np.asarray(network.inputs[0][name]) for name in setup.inputs})
    with without_links(network.file) as file:
        setup = replace(setup, path=str(file))
        expected, failed = reference(setup)
        setups = {name: setup_for(setup, engine, "") for name, engine in study.contenders.items()}
        setups |= {name: setup_for(setup, OURS, str(module)) for name, module in modules.items()}
        races: list[Race] = []
        while not _enough(races, study.restarts):
            races.append(
                race(
                    setups,
                    expected=expected and [None if n in setup.drawn else e for n, e in enumerate(expected)],
                    errors=None if races else _errors(network, setup),
                    rounds=study.options.rounds,
                    required=races[0].timings if races else modules,
                    progress=show,
                )
            )
            setups = {name: each for name, each in setups.items() if name in races[0].timings}
    ratios = _ratios(races)
    best = _fastest(ratios)
    return {
        "threads": setup.threads,
        "rounds": study.options.rounds,
        "engines": {name: _timing(name, races) for name in setups},
        "best_engine": best,
        "speedup_vs_best_engine": round(ratios[best].median, 4) if best else None,
        "ratios": {name: each.to_json() for name, each in ratios.items()},
        "failed": {**failed, **races[0].failed},
    }


def _ratios(races: Sequence[Race]) -> dict[str, Ratios]:
    return {
        name: Ratios([each.ratio(name, OURS) for each in races])
        for name in (races[0].timings if races else ())
        if name != OURS
    }


def _fastest(ratios: Mapping[str, Ratios]) -> str | None:
    """The contender with the least ratio, without an earlier module."""
    return min(ratios.keys() - {BEFORE}, key=lambda name: (ratios[name].median, name), default=None)


def _enough(races: Sequence[Race], restarts: int | None) -> bool:
    ratios = _ratios(races)
    decisive = [ratios[name] for name in (_fastest(ratios), BEFORE) if name in ratios]
    if restarts is None and any(each.wide for each in decisive):
        return len(races) >= _MOST_RESTARTS
    return len(races) >= (restarts or _RESTARTS)


def _timing(name: str, races: Sequence[Race]) -> dict[str, Any]:
    """Microseconds, seconds of loading, and the largest error, over all restarts."""
    timings = [each.timings[name] for each in races]
    errors = [each["max_relative_error"] for each in timings if each["max_relative_error"] is not None]
    errors += races[0].errors[name]
    return {
        "median_us": round(median(each["median_us"] for each in timings), 3),
        "min_us": min(each["min_us"] for each in timings),
        "load_s": round(median(each["load_s"] for each in timings), 3),
        "max_relative_error": largest(errors) if errors else None,
    }


def _errors(network: Network, setup: Setup) -> Errors | None:
    """The errors of a contender on all given inputs, by ONNX Runtime; None without given inputs."""
    if not network.inputs:
        return None
    import onnxruntime as ort

    session = ort.InferenceSession(setup.path, providers=["CPUExecutionProvider"])
    expected = [session.run(None, dict(each)) for each in network.inputs]

    def errors(run: Callable[[Sequence[Any]], Sequence[Any]]) -> list[float]:
        return [
            largest(map(scaled_error, run([np.asarray(feeds[name]) for name in setup.inputs]), outputs))
            for feeds, outputs in zip(network.inputs, expected, strict=True)
        ]

    return errors
