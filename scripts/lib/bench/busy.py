"""The command ``scripts/bench busy``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from collage.cli.options import JSON_OPTION
from scripts.lib.bench.options import Models, takes_models, takes_options
from scripts.lib.bench.output import head, show

if TYPE_CHECKING:
    from collage.bench.compiled import Options


@click.command("busy")
@takes_models
@takes_options(rounds=40, db=False)
@click.option("--quick", is_flag=True, help="Compile with --quick, which takes seconds instead of minutes.")
@JSON_OPTION
@click.pass_context
def command(ctx: click.Context, *, models: Models, options: Options, quick: bool, as_json: bool) -> None:
    """Compare compiles on a shared machine with one that has the machine alone.

    Each model is compiled on a fresh database while the machine is idle, then beside a process that keeps a core busy,
    then once more with that second database, when the core is idle again, and at last by two commands at once. Then all
    five modules run in processes of their own, in bursts that take turns. The machine should be idle otherwise.

    \b
    Examples:
      scripts/bench busy dcgan
      scripts/bench busy model.onnx --quick --json
    """
    from scripts.lib.studies import tables
    from scripts.lib.studies.each import each
    from scripts.lib.studies.shared_machine import shared_machine

    more = ("--quick",) if quick else ()
    status, results = each(models.find(), options, partial(shared_machine, more=more))
    found = {**head(options.threads, rounds=options.rounds, quick=quick), "models": results}
    show(found, tables.shared_machine(results) if results else [], as_json=as_json)
    ctx.exit(status)
