"""The main study: Collage against all other contenders on one model."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from collage.api import default_registry
from collage.bench.engines import OURS, Contest, bench, prepare
from collage.bench.race import race
from collage.core.progress import Progress
from collage.errors import unknown_names
from collage.frontend.read.load import load_onnx
from collage.frontend.rewrite.simplify import simplify
from scripts.lib.studies.compiled import Compiled, Options, compile_to
from scripts.lib.studies.contenders import Contenders
from scripts.lib.studies.hot_regions import hot_regions
from scripts.lib.studies.peak import Peak
from scripts.lib.studies.work import Work, node_work


def compare(
    model: Path,
    options: Options,
    show: Callable[[Progress], None],
    *,
    contenders: Contenders,
    peak: Peak,
    without: Sequence[str] = (),
) -> dict[str, Any]:
    """The JSON object of ``collage bench`` for the model, with the entries of ``describe``.

    ``without`` names backends. ``ablation`` has the slow-down of a module that was compiled without each of them.
    """
    with tempfile.TemporaryDirectory(prefix="collage-bench-") as folder:
        compiled = compile_to(Path(folder) / "module.collage", model, options, show)
        contest = Contest(engines=contenders.engines, others=contenders.others, rounds=options.rounds)
        found = bench(model, contest, module=compiled.file, progress=show)
        if without:
            found["ablation"] = _ablation(compiled, model, options, show, without)
    work = node_work(simplify(load_onnx(model)))
    return {**found, **describe(compiled, found["engines"][OURS]["median_us"], work, peak)}


def _ablation(
    compiled: Compiled,
    model: Path,
    options: Options,
    show: Callable[[Progress], None],
    without: Sequence[str],
) -> dict[str, float]:
    """Times of modules compiled without each backend over the time of ``compiled``, from one interleaved race."""
    available = [name for name, probe in default_registry().availability().items() if probe]
    if unknown := [name for name in without if name not in available]:
        raise unknown_names("backend", unknown, available)
    files = {OURS: compiled.file}
    for name in without:
        rest = [each for each in available if each != name]
        file = compiled.file.with_name(f"without-{name}.collage")
        files[name] = compile_to(file, model, options, show, backends=rest).file
    setup = prepare(model, threads=options.threads)
    setups = {name: replace(setup, engine=OURS, path=str(file)) for name, file in files.items()}
    raced = race(setups, required=files, rounds=options.rounds, progress=show)
    return {name: round(raced.ratio(name, OURS), 4) for name in without}


def describe(compiled: Compiled, median_us: float, work: Mapping[str, Work], peak: Peak) -> dict[str, Any]:
    """The model's arithmetic and its rate, the ratio of predicted to measured time (Eq. 2.2), and the mix."""
    flop = sum(each.flop for each in work.values())
    gflops = flop / median_us / 1e3
    report = compiled.report
    return {
        "gflop": round(flop / 1e9, 4),
        "gflops": round(gflops, 2),
        "share_of_peak": round(gflops / peak.gflops, 4),
        "predicted_us": round(report.predicted_us, 3),
        "measured_us": round(report.measured_us, 3),
        "predicted_over_measured": round(report.predicted_us / report.measured_us, 4),
        "mix": compiled.mix,
        "hot_regions": hot_regions(report, compiled.program, work),
    }


def geometric_means(results: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Geometric means of each contender's median over Collage's, and of the best other's under ``best``.

    A mean is over the models that the contender ran.
    """
    ratios: dict[str, list[float]] = {}
    for result in results:
        ours = result["engines"][OURS]["median_us"]
        others = {n: t["median_us"] / ours for n, t in result["engines"].items() if n != OURS}
        for name, ratio in others.items():
            ratios.setdefault(name, []).append(ratio)
        if others:
            ratios.setdefault("best", []).append(min(others.values()))
    return {name: round(math.exp(sum(map(math.log, each)) / len(each)), 4) for name, each in ratios.items()}
