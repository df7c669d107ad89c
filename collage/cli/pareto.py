"""What ``collage compile --pareto`` does after its compiles: the race, its table, and a picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from collage.core.progress import Progress


def curve_file(output: Path, tolerance: float) -> Path:
    """The module file of one of the curve's tolerances, beside ``output``."""
    return output.with_name(f"{output.stem}-{tolerance:g}{output.suffix}")


def raced(
    model: Path,
    modules: Mapping[float, Path],
    threads: int,
    shapes: Mapping[str, tuple[int, ...]],
    show: Callable[[Progress], None],
) -> dict[str, Any]:
    """The curve (see ``bench.pareto.curve``) of modules, which are files by tolerance."""
    from collage.bench.pareto import Contest, curve

    return curve(Contest(model, modules, threads, shapes=shapes), show)


def drawn(found: Mapping[str, Any], output: Path) -> Path | None:
    """The picture's file beside ``output``, or None without matplotlib, which draws it."""
    from collage.bench.pareto import draw

    file = output.with_suffix(".pareto.svg")
    try:
        draw(found, file)
    except ImportError:
        return None
    return file


def pareto_table(found: Mapping[str, Any]) -> Table:
    """The points from the fastest to the slowest; those on the frontier are marked."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    table.add_column("contender", no_wrap=True)
    table.add_column("ms", justify="right")
    table.add_column("error", justify="right")
    table.add_column("frontier")
    points = found["points"]
    for name in sorted(points, key=lambda name: points[name]["median_us"]):
        each = points[name]
        error = "-" if each["error"] is None else f"{each['error']:.1e}"
        on = "yes" if name in found["frontier"] else ""
        table.add_row(name, f"{each['median_us'] / 1e3:.3f}", error, on)
    return table
