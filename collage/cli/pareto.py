"""What ``collage compile --pareto`` does after its compiles: the race, its table, and a picture."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from collage.core.progress import Progress
from collage.errors import CollageError

log = logging.getLogger(__name__)

TOLERANCES = (0.0, 1e-3, 3e-3, 1e-2, 3e-2)
"""The tolerances of a curve: those at which bfloat16 is nowhere, in few and in all products of usual networks."""


def curve_files(output: Path, tolerance: float) -> dict[float, Path]:
    """The module files of the curve's tolerances, from the smallest one on: ``output`` is that of ``tolerance``.

    The others are beside it.
    """
    beside = {each: output.with_name(f"{output.stem}-{each:g}{output.suffix}") for each in TOLERANCES}
    return dict(sorted({**beside, tolerance: output}.items()))


def picture_file(output: Path) -> Path:
    """The file of the curve's picture."""
    return output.with_suffix(".pareto.svg")


def raced(
    model: Path, modules: Mapping[float, Path], options: Mapping[str, Any], show: Callable[[Progress], None]
) -> dict[str, Any]:
    """The curve (see ``bench.pareto.curve``) of modules, which are files by tolerance.

    ``options`` are those of the compiles. Errors are by their metric, and on their samples, if there are any.
    """
    from collage.bench.pareto import UNSEEN, ParetoRace, curve
    from collage.compiler.accuracy import Asked
    from collage.compiler.metrics import metric_of
    from collage.module.file import read_summary

    given = options["inputs"]
    samples = tuple([given] if isinstance(given, Mapping) else given) if given else ()
    asked = Asked(0.0, metric_of(options["metric"]), samples, UNSEEN)
    threads = read_summary(next(iter(modules.values()))).first[0].threads
    return curve(ParetoRace(model, modules, threads, shapes=options["shapes"], asked=asked), show)


def drawn(found: Mapping[str, Any], output: Path) -> Path | None:
    """The picture's file beside ``output``, or None without matplotlib, which draws it.

    None with a warning, too, where the file cannot be written: what is drawn is in the table as well.
    """
    from collage.bench.pareto import draw

    file = picture_file(output)
    try:
        draw(found, file)
    except ImportError:
        return None
    except CollageError as error:
        log.warning("there is no picture of the curve: %s", error)
        return None
    return file


def pareto_table(found: Mapping[str, Any]) -> Table:
    """The points from the fastest to the slowest; those on the frontier are marked."""
    title = f"error by {found['metric']} on {found['inputs']}"
    table = Table(
        box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False, title=title, title_justify="left"
    )
    table.add_column("contender", no_wrap=True)
    table.add_column("ms", justify="right")
    table.add_column("error", justify="right")
    table.add_column("frontier")
    points = found["points"]
    for name in sorted(points, key=lambda name: points[name]["median_us"]):
        each = points[name]
        on = "yes" if name in found["frontier"] else ""
        table.add_row(name, f"{each['median_us'] / 1e3:.3f}", f"{each['error']:.1e}", on)
    return table
