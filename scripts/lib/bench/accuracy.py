"""The command ``scripts/bench accuracy``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from collage.cli.options import JSON_OPTION
from scripts.lib.bench.options import (
    BUDGET_OPTION,
    RESULTS_OPTION,
    TOLERANCE_OPTION,
    only_option,
    packed,
    takes_options,
)
from scripts.lib.bench.output import head, show

if TYPE_CHECKING:
    from collage.bench.compiled import Options
    from scripts.lib.studies.accuracy import Asked


def _asked(tolerance: float, lines: int, seconds: float, quick: bool, budget_s: float | None) -> Asked:
    from scripts.lib.studies.accuracy import Asked

    return Asked(tolerance, lines, seconds, quick, budget_s)


@click.command("accuracy")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path, exists=True), metavar="[PATH]...")
@only_option("networks")
@TOLERANCE_OPTION
@click.option(
    "--lines",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    metavar="N",
    help="Lines of text, pages or files.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    default=30.0,
    show_default=True,
    metavar="S",
    help="Seconds of synthetic speech and noise.",
)
@click.option("--quick", is_flag=True, help="Compile with few candidates.")
@BUDGET_OPTION
@packed("asked", _asked)
@RESULTS_OPTION
@takes_options(rounds=None)
@JSON_OPTION
@click.pass_context
def command(
    ctx: click.Context,
    *,
    paths: tuple[Path, ...],
    only: str,
    asked: Asked,
    results: Path | None,
    options: Options,
    as_json: bool,
) -> None:
    """Tell whether networks with real weights decide the same within a tolerance as in float32.

    PATHs are ONNX files, folders and wheels of silero-vad, rapidocr-onnxruntime and magika; without one the installed
    packages are searched. Each network is compiled within the tolerance on 40 real samples. It then reads rendered
    lines, finds text on pages, tells the kind of files, or hears speech in a synthetic recording, none of which were
    among the samples. Its decisions are compared with those of ONNX Runtime in float32. The exit status is 1 where one
    differs.

    \b
    Examples:
      scripts/bench accuracy wheels
      scripts/bench accuracy wheels --only rec --tolerance 3e-3
      scripts/bench accuracy --quick --json
    """
    from scripts.lib.realmodels.files import networks
    from scripts.lib.studies import tables
    from scripts.lib.studies.accuracy import accuracy
    from scripts.lib.studies.one_by_one import one_by_one

    found = networks(paths, [only] if only else [])
    study = partial(accuracy, asked=asked, options=options)
    status, decided = one_by_one({each.name: each for each in found}, study, tables.decisions, results)
    contents = {**head(options.threads, tolerance=asked.tolerance), "models": decided}
    show(contents, tables.accuracy(decided) if decided else [], as_json=as_json)
    ctx.exit(status or int(any(each.get("different") for each in decided)))
