"""Figure 2.10: the best placement's speed over the op level's against the seconds of the graph-level search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from collage.errors import UsageError

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")


def draw(results: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Draw a curve of steps for each model. The suffix gives the format. Raises UsageError without matplotlib."""
    check(file)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    for number, result in enumerate(results):
        history, end = result["search"]["history"], result["search"]["seconds"]
        seconds = [each[0] for each in history] + [end]
        speed = [each[1] for each in history] + [history[-1][1]]
        name = result["model"].removesuffix(".onnx")
        axes.step(seconds, speed, where="post", label=name, color=COLOURS[number % len(COLOURS)])
    axes.axhline(1.0, color="#9a9a9a", linewidth=0.8)
    axes.set_xlabel("seconds of graph-level search")
    axes.set_ylabel("speed-up over the op level")
    axes.legend(frameon=False)
    figure.savefig(file)


def check(file: Path) -> None:
    """Raise UsageError where the picture could not be drawn. Call it before hours of work."""
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError as error:
        raise UsageError("--picture needs matplotlib: pip install '.[plots]'.") from error
    known = FigureCanvasBase.get_supported_filetypes()
    if file.suffix[1:] not in known:
        raise UsageError(f"--picture: {file} should end in one of .{', .'.join(sorted(known))}.")
    if not file.absolute().parent.is_dir():
        raise UsageError(f"--picture: there is no folder {file.absolute().parent}.")
