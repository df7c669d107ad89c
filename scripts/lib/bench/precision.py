"""The command ``scripts/bench precision``."""

from __future__ import annotations

from functools import partial
from statistics import geometric_mean
from typing import TYPE_CHECKING

import click

from collage.cli.options import JSON_OPTION
from scripts.lib.bench.options import Models, takes_models, takes_options
from scripts.lib.bench.output import head, show

if TYPE_CHECKING:
    from collage.bench.compiled import Options


@click.command("precision")
@takes_models
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0, min_open=True),
    default=1e-2,
    show_default=True,
    metavar="ERROR",
    help="The largest error of the outputs, as a share of their scale.",
)
@takes_options(rounds=30)
@JSON_OPTION
@click.pass_context
def command(ctx: click.Context, *, models: Models, tolerance: float, options: Options, as_json: bool) -> None:
    """Compare modules within a tolerance with float32 and with engines in their own precisions.

    Each model is compiled in float32 and within the tolerance. Both modules and each engine, OpenVINO also in bfloat16,
    run in processes of their own, in bursts that take turns. An engine counts where its error is within the tolerance,
    too. The error is also told on 20 inputs that the compile has not seen.

    \b
    Examples:
      scripts/bench precision
      scripts/bench precision bert_base resnext50_32x4d --tolerance 3e-3
      scripts/bench precision model.onnx --json
    """
    from scripts.lib.studies import tables
    from scripts.lib.studies.each import each
    from scripts.lib.studies.precision import SPEEDUPS, precision

    status, results = each(models.find(), options, partial(precision, tolerance=tolerance))
    ratios = {key: [r["speedup"][key] for r in results if r["speedup"][key]] for key in SPEEDUPS}
    means = {key: round(geometric_mean(each), 4) for key, each in ratios.items() if each}
    found = {
        **head(options.threads, rounds=options.rounds, tolerance=tolerance),
        "models": results,
        "geometric_mean": means,
    }
    show(found, tables.precision(results, means) if results else [], as_json=as_json)
    ctx.exit(status)
