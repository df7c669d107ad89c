"""The command ``scripts/bench anytime``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from collage.cli.options import JSON_OPTION
from scripts.lib.bench.options import RESULTS_OPTION, Models, packed, takes_models, takes_options
from scripts.lib.bench.output import head, show

if TYPE_CHECKING:
    from collage.bench.compiled import Options


def search_of(budget: tuple[float, ...], exhaustive: bool) -> tuple[tuple[float, ...], bool]:
    """The budgets in seconds, and whether the exhaustive compile takes part."""
    return tuple(dict.fromkeys(budget)), exhaustive


@click.command("anytime")
@takes_models
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    multiple=True,
    default=(60.0,),
    show_default=True,
    metavar="SECONDS",
    help="Compile with this budget, too. The option may be repeated.",
)
@click.option(
    "--exhaustive/--no-exhaustive",
    default=True,
    show_default=True,
    help="Whether a compile that measures every candidate to the end is what the others are compared with.",
)
@packed("search", search_of)
@RESULTS_OPTION
@takes_options(rounds=30, db=False)
@click.option(
    "--picture",
    type=click.Path(path_type=Path),
    metavar="FILE.svg",
    help="Draw the best module so far over time (needs the extra `plots`).",
)
@JSON_OPTION
@click.pass_context
def command(
    ctx: click.Context,
    *,
    models: Models,
    search: tuple[tuple[float, ...], bool],
    results: Path | None,
    options: Options,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Compare what a compile has after some seconds with what it has at its end.

    Each model is compiled quickly, with each budget, without one, and with every candidate measured to the end, each
    time into an empty database. The compile without a budget is repeated with the database that it has made. Then all
    modules and each engine run in processes of their own, in bursts that take turns. The table tells the share of the
    exhaustive result's speed that each of the others has.

    With --results the table and the picture also have the models that earlier runs of this command wrote to that file,
    since all of them take hours in one run.

    \b
    Examples:
      scripts/bench anytime
      scripts/bench anytime dcgan model.onnx --budget 15 --budget 60 --picture anytime.svg
      scripts/bench anytime nasnet_a_mobile --budget 150 --results six.jsonl --picture anytime.svg
    """
    from scripts.lib.studies import tables
    from scripts.lib.studies.anytime import anytime
    from scripts.lib.studies.anytime_picture import draw
    from scripts.lib.studies.levels_picture import check
    from scripts.lib.studies.one_by_one import PROBLEM, kept_results, one_by_one

    if picture is not None:
        check(picture)
    budgets, exhaustive = search
    study = partial(anytime, options=options, budgets=budgets, exhaustive=exhaustive)
    files = {file.name: file for file in models.find()}
    status, found = one_by_one(files, study, tables.anytime_lines, results)
    rows = [row for row in found if PROBLEM not in row] if results is None else kept_results(results)
    if picture is not None and rows:
        draw(rows, picture)
    contents = {**head(options.threads, rounds=options.rounds), "models": rows}
    show(contents, tables.anytime(rows) if rows else [], as_json=as_json)
    ctx.exit(status)
