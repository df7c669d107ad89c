"""The best module so far against the seconds of a compile, one curve for each model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.lib.studies.anytime import UNLIMITED
from scripts.lib.studies.levels_picture import COLOURS, check


def draw(results: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Draw the compile without a budget. The suffix gives the format. Raises UsageError without matplotlib."""
    check(file)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    for number, result in enumerate(results):
        compiled = result["compiles"][UNLIMITED]
        course, end = compiled["course"], compiled["compile_s"]
        least = min(each[1] for each in course)
        seconds = [each[0] for each in course] + [end]
        speed = [least / each[1] for each in course] + [least / course[-1][1]]
        name = result["model"].removesuffix(".onnx")
        axes.step(seconds, speed, where="post", label=name, color=COLOURS[number % len(COLOURS)])
    axes.axhline(0.98, color="#9a9a9a", linewidth=0.8)
    axes.set_xlabel("seconds of the compile")
    axes.set_ylabel("speed of the best module so far")
    axes.legend(frameon=False)
    figure.savefig(file)
