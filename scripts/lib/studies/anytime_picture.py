"""The best module so far against the seconds of a compile, one curve for each model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.lib.studies.anytime import EXHAUSTIVE, UNLIMITED
from scripts.lib.studies.levels_picture import COLOURS, check


def draw(results: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Draw the compile without a budget. The suffix gives the format. Raises UsageError without matplotlib."""
    check(file)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    for number, result in enumerate(results):
        course, end = shares_of_course(result), result["compiles"][UNLIMITED]["compile_s"]
        seconds = [each for each, _ in course] + [end]
        shares = [100 * share for _, share in course] + [100 * course[-1][1]]
        name = result["model"].removesuffix(".onnx")
        axes.step(seconds, shares, where="post", label=name, color=COLOURS[number % len(COLOURS)])
    axes.axhline(98, color="#9a9a9a", linewidth=0.8)
    axes.set_xlabel("seconds of a compile without a budget")
    axes.set_ylabel("speed, % of the exhaustive compile's")
    axes.legend(frameon=False)
    figure.savefig(file)


def shares_of_course(result: Mapping[str, Any]) -> list[tuple[float, float]]:
    """The seconds after which there was a better module, and its speed as a share of the exhaustive compile's.

    Modules that were compared at different times of a compile met different machines. So the engine's speed and that of
    the last module are those of the last race, and others lie beside the last one as they did during the compile, but
    not above it: the compile's last comparison has chosen it.
    """
    course = result["compiles"][UNLIMITED]["course"]
    shares, contenders = result["share_of_best"], result["contenders"]
    last, base = course[-1], EXHAUSTIVE if EXHAUSTIVE in shares else UNLIMITED
    found = []
    for seconds, latency_ms, label in course:
        engine = contenders.get(label.partition(",")[0])
        if engine is None or label == last[2]:
            share = shares[UNLIMITED] * min(1.0, last[1] / latency_ms)
        else:
            share = contenders[base]["median_us"] / engine["median_us"]
        found.append((seconds, share))
    return found
