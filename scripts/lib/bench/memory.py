"""The command ``scripts/bench memory``."""

from __future__ import annotations

from functools import partial

import click

from collage.cli.options import JSON_OPTION, THREADS_OPTION
from scripts.lib.bench.options import BUDGET_OPTION, Models, takes_models
from scripts.lib.bench.output import head, show


@click.command("memory")
@takes_models
@BUDGET_OPTION
@click.option("--quick", is_flag=True, help="Compile quickly.")
@THREADS_OPTION
@JSON_OPTION
@click.pass_context
def command(
    ctx: click.Context,
    *,
    models: Models,
    budget_s: float | None,
    quick: bool,
    threads: int | None,
    as_json: bool,
) -> None:
    """Tell how much memory a compile takes, by stage.

    Each model (by default BERT-large, whose weights take 1.3 GB) is compiled into an empty database. Meanwhile the
    private memory of the process and of all processes that it starts is looked at ten times a second. What processes
    map of files does not count, since the system takes it back.

    \b
    Examples:
      scripts/bench memory
      scripts/bench memory model.onnx --budget 60
      scripts/bench memory bert_base --quick --json
    """
    from collage.kernel.target import usable_cores
    from scripts.lib.studies import tables
    from scripts.lib.studies.memory import lines, memory
    from scripts.lib.studies.one_by_one import PROBLEM, one_by_one

    files = {file.name: file for file in models.find(("bert_large",))}
    threads = threads or usable_cores()
    study = partial(memory, threads=threads, budget_s=budget_s, quick=quick)
    status, found = one_by_one(files, study, lines)
    rows = [row for row in found if PROBLEM not in row]
    show({**head(threads), "models": found}, tables.memory(rows), as_json=as_json)
    ctx.exit(status)
