"""The command ``scripts/bench precision``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from statistics import geometric_mean
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from collage.cli.options import JSON_OPTION
from scripts.lib.bench.options import (
    BUDGET_OPTION,
    RESULTS_OPTION,
    TOLERANCE_OPTION,
    Models,
    only_option,
    packed,
    takes_models,
    takes_options,
)
from scripts.lib.bench.output import head, show

if TYPE_CHECKING:
    from scripts.lib.studies.compiled import Options
    from scripts.lib.studies.precision import Asked


def _asked(tolerance: float, draws: int, float32: bool, budget_s: float | None) -> Asked:
    from scripts.lib.studies.precision import Asked

    return Asked(tolerance, draws, float32, budget_s)


@click.command("precision")
@takes_models
@click.option(
    "--real",
    type=click.Path(path_type=Path, exists=True),
    multiple=True,
    metavar="PATH",
    help="Wheels, folders or files of networks with real weights, which get real inputs; may be repeated.",
)
@only_option("networks of --real")
@TOLERANCE_OPTION
@click.option(
    "--draws",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    metavar="N",
    help="Inputs that the compile has not seen, to tell the error on.",
)
@click.option("--float32/--no-float32", default=True, help="Whether our own float32 takes part.")
@BUDGET_OPTION
@packed("asked", _asked)
@RESULTS_OPTION
@takes_options(rounds=30)
@JSON_OPTION
@click.pass_context
def command(
    ctx: click.Context,
    *,
    models: Models,
    real: tuple[Path, ...],
    only: str,
    asked: Asked,
    results: Path | None,
    options: Options,
    as_json: bool,
) -> None:
    """Compare modules within a tolerance with float32 and with engines in their own precisions.

    Each model is compiled in float32 and within the tolerance. Both modules and each engine, OpenVINO also in bfloat16
    and ONNX Runtime also in 8 bits, run in processes of their own, in bursts that take turns. Errors are told on 20
    inputs that the compile has not seen. An engine counts where no more of its errors are beyond the
    tolerance than of ours.

    Networks of --real (silero-vad, rapidocr-onnxruntime and magika) get rendered text, generated sound and files, as
    samples and as other inputs. With --real and no MODEL only these are compared.

    A model that fails does not stop the others. Each result is told on stderr as soon as it is there. To save time
    leave out float32 (half of the compiles), bound compiles by --budget, or take fewer rounds and draws.

    \b
    Examples:
      scripts/bench precision
      scripts/bench precision bert_base resnext50_32x4d --tolerance 3e-3
      scripts/bench precision --real wheels --only rec --budget 120 --no-float32 --results results.jsonl
      scripts/bench precision model.onnx --json
    """
    from scripts.lib.studies import tables
    from scripts.lib.studies.one_by_one import PROBLEM, one_by_one
    from scripts.lib.studies.precision import SPEEDUPS, Subject, precision
    from scripts.lib.studies.real_subjects import real_subjects

    with TemporaryDirectory(prefix="collage-real-") as folder:
        files = models.find() if models.models or not real else []
        subjects = {file.name: Subject(file) for file in files}
        if real:
            subjects |= real_subjects(real, only, Path(folder), asked.draws)
        study = partial(precision, asked=asked, options=options)
        status, found = one_by_one(subjects, study, tables.precision_lines, results)
    compared = [each for each in found if PROBLEM not in each]
    ratios = {key: [r["speedup"][key] for r in compared if r["speedup"][key]] for key in SPEEDUPS}
    means = {key: round(geometric_mean(each), 4) for key, each in ratios.items() if each}
    contents = {
        **head(options.threads, rounds=options.rounds, tolerance=asked.tolerance),
        "models": found,
        "geometric_mean": means,
    }
    show(contents, tables.precision(found, means) if found else [], as_json=as_json)
    ctx.exit(status)
