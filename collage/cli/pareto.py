"""``collage compile --pareto``: compiles at several tolerances, a race of the modules, its table, and a picture."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from collage.cli.console import print_json, print_table, say
from collage.cli.files import check_writable, refuse_same

log = logging.getLogger(__name__)

TOLERANCES = (0.0, 1e-3, 3e-3, 1e-2, 3e-2)
"""The tolerances of a curve: those at which bfloat16 is nowhere, in few and in all products of usual networks."""


def check_curve(model: Path, output: Path, tolerance: float) -> None:
    """Raise UsageError if a file of the curve would replace the model, and CollageError if it cannot be written."""
    for each in (*_files(output, tolerance).values(), _picture_file(output)):
        refuse_same(model, each, "--pareto", ".collage")
        check_writable(each)


def compiled_curve(model: Path, output: Path, options: Mapping[str, Any]) -> dict[str, Any]:
    """Compile at all tolerances of the curve, with ``options`` of ``collage.compile``, and race the modules.

    Returns the curve (``bench.pareto.curve``) with the files of the modules and of the picture. The largest tolerance
    comes first, since its measurements serve all others. They share the budget. After Ctrl-C the others get their first
    modules. Errors are by the metric of the compiles, and on their samples, if there are any.
    """
    from collage import api
    from collage.bench.pareto import UNSEEN, ParetoRace, curve
    from collage.compiler.accuracy import Asked
    from collage.compiler.clock import share_of
    from collage.compiler.metrics import metric_of
    from collage.core.deadline import Deadline
    from collage.core.progress import Progress
    from collage.report.best_so_far import INTERRUPT

    course, interrupted, show = Deadline(), False, options["progress"]
    files = _files(output, options["tolerance"])
    for number, each in enumerate(reversed(files)):
        show(Progress(f"tolerance {each:g}", number, len(files)))
        share = share_of(options["budget_s"], course, len(files) - number, interrupted=interrupted)
        module = api.compile(model, **{**options, "tolerance": each, "budget_s": share})
        interrupted = interrupted or module.report.ended == INTERRUPT
        module.save(files[each])
    given = options["inputs"]
    samples = tuple([given] if isinstance(given, Mapping) else given) if given else ()
    asked = Asked(0.0, metric_of(options["metric"]), samples, UNSEEN)
    contest = ParetoRace(model, files, module.report.threads, shapes=options["shapes"], asked=asked)
    found = curve(contest, show)
    picture = _drawn(found, output)
    return {
        **found,
        "modules": {f"{each:g}": str(file) for each, file in files.items()},
        "picture": None if picture is None else str(picture),
    }


def show_curve(found: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the points from the fastest to the slowest, with a mark for those on the frontier, and the files."""
    if as_json:
        print_json(found)
        return
    rows = [
        (
            name,
            f"{each['median_us'] / 1e3:.3f}",
            f"{each['error']:.1e}",
            "yes" if name in found["frontier"] else "",
        )
        for name, each in sorted(found["points"].items(), key=lambda point: point[1]["median_us"])
    ]
    say(f"error by {found['metric']} on {found['inputs']}")
    print_table(("contender", "ms", "error", "frontier"), rows, right=("ms", "error"))
    files = [*found["modules"].values(), *filter(None, [found["picture"]])]
    say(f"\nwrote {', '.join(files)}")


def _files(output: Path, tolerance: float) -> dict[float, Path]:
    """The module files by tolerance, from the smallest one on: ``output`` for ``tolerance``, the others beside it."""
    beside = {each: output.with_name(f"{output.stem}-{each:g}{output.suffix}") for each in TOLERANCES}
    return dict(sorted({**beside, tolerance: output}.items()))


def _picture_file(output: Path) -> Path:
    return output.with_suffix(".pareto.svg")


def _drawn(found: Mapping[str, Any], output: Path) -> Path | None:
    """The picture's file, or None without matplotlib, which draws it, and with a warning if it cannot be written."""
    from collage.bench.pareto import draw
    from collage.errors import CollageError

    file = _picture_file(output)
    try:
        draw(found, file)
    except ImportError:
        return None
    except CollageError as error:
        log.warning("there is no picture of the curve: %s", error)
        return None
    return file
