"""The command ``scripts/bench cpu``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from collage.cli.options import JSON_OPTION, parse_names
from scripts.lib.bench.options import Models, takes_models, takes_options
from scripts.lib.bench.output import head, show

if TYPE_CHECKING:
    from scripts.lib.studies.compiled import Options


@click.command("cpu")
@takes_models
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Batch of the workloads.",
)
@takes_options(rounds=30)
@click.option(
    "--contenders",
    type=parse_names,
    metavar="A,B",
    help="Compare with these only: pytorch, inductor, inductor_max_autotune or an engine. Default: all that are "
    "installed, without inductor_max_autotune.",
)
@click.option(
    "--tune-trials",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="Trials for which TVM tunes a kernel. With 0 it has no convolutions.",
)
@click.option(
    "--without",
    multiple=True,
    metavar="NAME",
    help="Compile once more without this backend, and tell how much slower that is; may be repeated.",
)
@JSON_OPTION
@click.pass_context
def command(
    ctx: click.Context,
    *,
    models: Models,
    options: Options,
    contenders: tuple[str, ...] | None,
    without: tuple[str, ...],
    as_json: bool,
) -> None:
    """Compare Collage with PyTorch, ONNX Runtime and OpenVINO on whole models.

    A MODEL is the name of a workload (`scripts/models --list`) or an .onnx file. Without any, the paper's five
    workloads are compared. Every contender has a process of its own, the same threads and inputs, and float32. They
    run in bursts that take turns, and their outputs are compared with ONNX Runtime's. PyTorch, eager and compiled by
    Inductor, runs the modules that the workloads' files were made from.

    \b
    Examples:
      scripts/bench cpu
      scripts/bench cpu dcgan model.onnx --threads 1
      scripts/bench cpu resnext50_32x4d --batch 8
      scripts/bench cpu dcgan --without native --without onednn
    """
    from collage.report.progress_display import display
    from scripts.lib.studies import tables
    from scripts.lib.studies.comparison import compare, geometric_means
    from scripts.lib.studies.contenders import choose
    from scripts.lib.studies.each import each, say
    from scripts.lib.studies.peak import measure_peak

    chosen = choose(contenders)
    paths = models.find()
    if chosen.note:
        say(chosen.note)
    with display(True) as progress:
        peak = measure_peak(options.threads, progress)
    study = partial(compare, contenders=chosen, peak=peak, without=without)
    status, results = each(paths, options, study)
    found = {
        **head(options.threads, rounds=options.rounds),
        "peak_gflops": peak.gflops,
        "peak_engine": peak.engine,
        "models": results,
        "geometric_mean": geometric_means(results),
    }
    show(found, tables.comparison(results, peak) if results else [], as_json=as_json)
    ctx.exit(status)
