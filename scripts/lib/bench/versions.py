"""The command ``scripts/bench versions``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from collage.cli.console import print_json
from scripts.lib.bench.options import Models, takes_models, takes_options
from scripts.lib.bench.output import head

if TYPE_CHECKING:
    from collage.bench.compiled import Options


@click.command("versions")
@takes_models
@click.option(
    "--before",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    required=True,
    metavar="DIR",
    help="Checkout of the version before, its native code built in place.",
)
@takes_options(rounds=40, db=False)
@click.pass_context
def command(ctx: click.Context, *, models: Models, before: Path, options: Options) -> None:
    """Compare two versions of Collage on the same models.

    Each version compiles each model once with default effort into an empty database, one after the other. Then both
    modules run in processes of their own, in bursts that take turns. A ratio above 1 says that this version is faster
    than the one before. Both versions run with this Python and its packages. One JSON object goes to stdout.

    \b
    Examples:
      git worktree add ../before v0.5
      scripts/bench versions --before ../before
      scripts/bench versions --before ../before dcgan model.onnx
    """
    from scripts.lib.studies.each import each
    from scripts.lib.studies.versions import Comparison

    status, results = each(models.find(), options, Comparison(before.resolve()))
    print_json({**head(options.threads, rounds=options.rounds), "models": results})
    ctx.exit(status)
