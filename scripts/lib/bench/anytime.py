"""The command ``scripts/bench anytime``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from collage.cli.options import JSON_OPTION
from scripts.lib.bench.options import Models, packed, takes_models, takes_options
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
    options: Options,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Compare what a compile has after some seconds with what it has at its end.

    Each model is compiled quickly, with each budget, without one, and with every candidate measured to the end, each
    time into an empty database. The compile without a budget is repeated with the database that it has made. Then all
    modules and each engine run in processes of their own, in bursts that take turns. The table tells the share of the
    exhaustive result's speed that each of the others has.

    \b
    Examples:
      scripts/bench anytime
      scripts/bench anytime dcgan model.onnx --budget 15 --budget 60 --picture anytime.svg
    """
    from scripts.lib.studies import tables
    from scripts.lib.studies.anytime import anytime
    from scripts.lib.studies.anytime_picture import draw
    from scripts.lib.studies.each import each
    from scripts.lib.studies.levels_picture import check

    if picture is not None:
        check(picture)
    budgets, exhaustive = search
    study = partial(anytime, budgets=budgets, exhaustive=exhaustive)
    status, results = each(models.find(), options, study)
    if picture is not None and results:
        draw(results, picture)
    found = {**head(options.threads, rounds=options.rounds), "models": results}
    show(found, tables.anytime(results) if results else [], as_json=as_json)
    ctx.exit(status)
