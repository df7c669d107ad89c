"""The command ``scripts/bench levels``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from collage.cli.options import JSON_OPTION, SHAPES_OPTION, once_each
from scripts.lib.bench.options import Models, packed, takes_models, takes_options
from scripts.lib.bench.output import head, show

if TYPE_CHECKING:
    from collage.bench.compiled import Options

Shapes = tuple[tuple[str, tuple[int, ...]], ...]


def search_of(budget: float, shapes: Shapes) -> tuple[float, dict[str, tuple[int, ...]]]:
    """The seconds that the search may take, and the shapes of inputs."""
    return budget, once_each("--shape", shapes)


@click.command("levels")
@takes_models
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="Time of the graph-level compile of each model, nearly all of which is the search.",
)
@SHAPES_OPTION
@packed("search", search_of)
@takes_options(rounds=30)
@click.option(
    "--picture",
    type=click.Path(path_type=Path),
    metavar="FILE.svg",
    help="Draw the search over time (needs the extra `plots`).",
)
@JSON_OPTION
@click.pass_context
def command(
    ctx: click.Context,
    *,
    models: Models,
    search: tuple[float, dict[str, tuple[int, ...]]],
    options: Options,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Compare the op level with the graph level, and both with the engines.

    Each model is compiled at both levels. Then both modules, and each engine on the original file, run in processes of
    their own, in bursts that take turns. The picture shows the best placement's speed against the seconds of search,
    as the paper's Figure 2.10 does. Ctrl-C during a search ends that search only.

    \b
    Examples:
      scripts/bench levels
      scripts/bench levels bert_base dcgan --budget 600 --picture levels.svg
      scripts/bench levels model.onnx --shape ids:1x128 --json
    """
    from scripts.lib.studies import tables
    from scripts.lib.studies.each import each
    from scripts.lib.studies.levels import levels
    from scripts.lib.studies.levels_picture import check, draw

    if picture is not None:
        check(picture)
    budget, shapes = search
    status, results = each(models.find(), options, partial(levels, budget_s=budget, shapes=shapes))
    if picture is not None and results:
        draw(results, picture)
    found = {**head(options.threads, rounds=options.rounds, budget_s=budget), "models": results}
    show(found, tables.levels(results) if results else [], as_json=as_json)
    ctx.exit(status)
