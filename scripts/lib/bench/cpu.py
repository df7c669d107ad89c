"""The command ``scripts/bench cpu``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from collage.cli.options import JSON_OPTION, parse_names
from scripts.lib.bench.options import Models, packed, takes_models, takes_options
from scripts.lib.bench.output import head, show

if TYPE_CHECKING:
    from rich.console import RenderableType

    from collage.bench.compiled import Options


@dataclass(frozen=True)
class Outcome:
    """The exit status, the JSON object without its first entries, and the same as text."""

    status: int
    found: dict[str, Any]
    view: list[RenderableType]


def one_study(*, ablation: bool, busy: bool, overhead: bool) -> str:
    """The name of the chosen study; "" is the comparison."""
    asked = [
        name for name, wanted in (("ablation", ablation), ("busy", busy), ("overhead", overhead)) if wanted
    ]
    if len(asked) > 1:
        raise click.UsageError(f"--{' and --'.join(asked)} are studies of their own; ask for one at a time.")
    return asked[0] if asked else ""


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
    "--ablation", is_flag=True, help="Compile with one backend more each time; then plain layouts only."
)
@click.option(
    "--busy", is_flag=True, help="Tell how much slower a process that keeps a core busy makes each."
)
@click.option("--overhead", is_flag=True, help="Tell what a launch costs beside its kernel.")
@packed("study", one_study)
@JSON_OPTION
@click.pass_context
def command(
    ctx: click.Context,
    *,
    models: Models,
    options: Options,
    contenders: tuple[str, ...] | None,
    study: str,
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
      scripts/bench cpu --ablation
      scripts/bench cpu --busy --rounds 30
      scripts/bench cpu --overhead
    """
    outcome = _overhead(options) if study == "overhead" else _study(models, options, contenders, study)
    found = {**head(options.threads, rounds=options.rounds), **outcome.found}
    show(found, outcome.view, as_json=as_json)
    ctx.exit(outcome.status)


def _overhead(options: Options) -> Outcome:
    from scripts.lib.studies import tables
    from scripts.lib.studies.overhead import launch_overhead

    launches = [launch_overhead(threads) for threads in sorted({1, options.threads})]
    return Outcome(0, {"overhead": launches}, tables.overhead(launches))


def _study(models: Models, options: Options, names: tuple[str, ...] | None, study: str) -> Outcome:
    from collage.bench.peak import measure_peak
    from collage.report.progress_display import display
    from scripts.lib.studies import tables
    from scripts.lib.studies.ablation import ablate
    from scripts.lib.studies.busy import slowdown
    from scripts.lib.studies.comparison import compare, geometric_means
    from scripts.lib.studies.contenders import choose
    from scripts.lib.studies.each import each, say

    contenders = choose(names)
    paths = models.find()
    if study == "ablation":
        status, results = each(paths, options, ablate)
        return Outcome(status, {"ablation": results}, tables.ablation(results) if results else [])
    if study == "busy":
        status, results = each(paths, options, slowdown)
        return Outcome(status, {"busy": results}, tables.busy(results) if results else [])
    if contenders.note:
        say(contenders.note)
    with display(True) as progress:
        peak = measure_peak(options.threads, progress)
    status, results = each(paths, options, partial(compare, contenders=contenders, peak=peak))
    found = {
        "peak_gflops": peak.gflops,
        "peak_engine": peak.engine,
        "models": results,
        "geometric_mean": geometric_means(results),
    }
    return Outcome(status, found, tables.comparison(results, peak) if results else [])
