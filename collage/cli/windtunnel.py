"""The command ``collage windtunnel``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from collage.cli.console import print_json, say
from collage.cli.files import check_writable, refuse_same
from collage.cli.options import JSON_OPTION, PATH, QUIET_OPTION, SEED_OPTION, TRUST_OPTION, Count, flag, option
from collage.errors import InputError, ModelError, UsageError

_SUFFIXES = (".onnx", ".tunnel")


@click.group()
def windtunnel() -> None:
    """Fine-tune a trained scikit-learn pipeline as one network."""


@windtunnel.command()
@click.argument("pipeline", metavar="PIPELINE.joblib", type=PATH)
@option(
    "--data",
    required=True,
    multiple=True,
    metavar="TRAIN.parquet",
    type=PATH,
    help="The rows to fine-tune on; once for each file.",
)
@option("--target", required=True, metavar="COLUMN", help="The column to predict.")
@option(
    "-o",
    "--output",
    required=True,
    metavar="OUT",
    type=PATH,
    help="OUT.onnx: a model that `collage compile` takes. OUT.tunnel: a network that collage.windtunnel.load takes, to "
    "predict with, or to fine-tune further.",
)
@option(
    "--validation",
    metavar="FILE.parquet|SHARE",
    default="0.1",
    show_default=True,
    help="Rows that say when to stop, best rows that the pipeline has not seen; or the share of the rows to hold out.",
)
@option(
    "--level",
    type=click.Choice(["L1", "L2", "L3", "L4"]),
    default="L3",
    show_default=True,
    help="What is learnt of trees: values of leaves (they stay trees), and thresholds, and weights of features, and "
    "the layer of leaves.",
)
@option(
    "--scope",
    type=click.Choice(["whole", "trees"]),
    default="whole",
    show_default=True,
    help="Fine-tune all of the pipeline, or its last estimator alone.",
)
@option("--epochs", type=Count(min=1), default=20, show_default=True, metavar="N", help="The most epochs.")
@option(
    "--patience",
    type=Count(min=1),
    default=3,
    show_default=True,
    metavar="N",
    help="Epochs without a gain to stop after.",
)
@option("--rate", type=float, default=1e-3, show_default=True, metavar="R", help="Adam's rate.")
@option("--batch", type=Count(min=1), default=4096, show_default=True, metavar="ROWS", help="Rows of a step.")
@flag("--cold", help="Start from random numbers instead of the pipeline's.")
@option(
    "--front",
    multiple=True,
    metavar="PLACE",
    help="Let scikit-learn go on running this operator, such as pre.numbers; once for each.",
)
@TRUST_OPTION
@SEED_OPTION
@JSON_OPTION
@QUIET_OPTION
def fit(
    pipeline: Path,
    data: tuple[Path, ...],
    target: str,
    output: Path,
    validation: str,
    level: str,
    scope: str,
    epochs: int,
    patience: int,
    rate: float,
    batch: int,
    cold: bool,
    front: tuple[str, ...],
    trust: bool,
    seed: int,
    as_json: bool,
    quiet: bool,
) -> None:
    """Fine-tune a pipeline of scikit-learn, with or without trees, as one network.

    PIPELINE.joblib is a fitted pipeline. It becomes a network that predicts the same, whose encoders, scalers and trees
    are then trained together. Ctrl-C ends that with the best weights so far, which are written.

    \b
    Examples:
      collage windtunnel fit pipeline.joblib --data train.parquet --target late -o late.onnx --trust
      collage compile late.onnx -o late.collage
      collage windtunnel fit pipeline.joblib --data train.parquet --target late --level L1 -o late.tunnel --trust
    """
    from collage.frontend.trees.files import read_object

    if output.suffix not in _SUFFIXES:
        raise UsageError(f"{output} is written as {' or '.join(_SUFFIXES)}: give it one of these endings.")
    for each in (pipeline, *data):
        refuse_same(each, output, "--output", output.suffix)
    check_writable(output, _SUFFIXES)
    try:
        from collage.windtunnel import translate
    except ImportError as error:
        raise ModelError(f"WindTunnel needs {error.name}: pip install 'collage-compiler[windtunnel]'.") from error
    tunnel = translate(read_object(pipeline, trust), front=front)
    if tunnel.fronts_ and output.suffix == ".onnx":
        names = ", ".join(each.path for each in tunnel.fronts_)
        raise UsageError(
            f"scikit-learn goes on running {names}, which ONNX cannot hold: write OUT.tunnel, or a pipeline without."
        )
    found = tunnel.fine_tune(
        *(list(data), target),
        validation=_validation(validation, target),
        level=level,
        scope=scope,
        start="cold" if cold else "warm",
        epochs=epochs,
        patience=patience,
        rate=rate,
        batch=batch,
        seed=seed,
        progress=None if quiet else _progress(),
    )
    (found.to_onnx if output.suffix == ".onnx" else found.save)(output)
    best = max(found.history_, key=lambda each: each.score)
    source_score = float(found.source_score_ or 0.0)
    kept = best.score <= source_score
    if as_json:
        print_json(
            {
                "output": str(output),
                "epochs": len(found.history_) - 1,
                "best_epoch": best.number,
                "source_score": source_score,
                "source_kept": kept,
                "score_before": found.history_[0].score,
                "score": best.score,
                "seconds": found.history_[-1].seconds,
            }
        )
        return
    pipeline_has = f"the pipeline itself has {source_score:.5f}"
    ending = f"; {pipeline_has}, and is kept" if kept else f"; {pipeline_has}"
    say(f"{output}: {best.score:.5f} on validation rows after epoch {best.number}{ending}")


def _validation(text: str, target: str) -> Any:
    """A share of the rows, or a file of rows."""
    try:
        return float(text)
    except ValueError:
        pass
    if not Path(text).exists():
        raise InputError(f"--validation is a share of the rows, such as 0.1, or a parquet file, and {text} is none.")
    return Path(text), target


def _progress() -> Callable[[Any], None]:
    def show(epoch: Any) -> None:
        if epoch.number:
            say(
                f"epoch {epoch.number}: loss {epoch.loss:.5f}, validation {epoch.score:.5f}, {epoch.seconds:.1f} s",
                err=True,
            )
        else:
            say(f"before the first epoch: validation {epoch.score:.5f}", err=True)

    return show
