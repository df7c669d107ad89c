"""The command ``scripts/bench parallel``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from collage.cli.options import DB_OPTION, JSON_OPTION
from scripts.lib import say
from scripts.lib.bench.common import FOLDER_OPTION, head, rounds_option, show_results, table

if TYPE_CHECKING:
    from rich.table import Table

_MODELS = ("layer", "gpt2", "tiny")
_TIMES = ("one", "data", "tensor", "cache", "pipeline")


def _numbers(text: str) -> tuple[int, ...]:
    try:
        found = tuple(sorted({int(each) for each in text.split(",")}))
    except ValueError:
        found = ()
    if not found or found[0] < 1:
        raise click.BadParameter(f"{text!r} is no list of numbers; write 1024,8192.")
    return found


@click.command("parallel")
@click.argument("models", nargs=-1, type=click.Choice(_MODELS), metavar="[layer] [gpt2] [tiny]")
@click.option(
    "--cached",
    type=_numbers,
    default="1024,8192,32768,102400",
    show_default=True,
    metavar="N,N",
    help="Cached tokens of each sequence.",
)
@click.option(
    "--batch",
    "batches",
    type=_numbers,
    default="1,2",
    show_default=True,
    metavar="N,N",
    help="Sequences of an iteration.",
)
@FOLDER_OPTION
@rounds_option(7)
@DB_OPTION
@JSON_OPTION
def command(
    *,
    models: tuple[str, ...],
    cached: tuple[int, ...],
    batches: tuple[int, ...],
    folder: Path,
    rounds: int,
    db: Path | None,
    as_json: bool,
) -> None:
    """Compare data, tensor, pipeline and Cache Parallelism at decoding with many cached tokens.

    The models are one layer of Llama-7B and GPT-2 124M with a longer table of positions, both with random weights in
    float32. Each iteration computes a token of each sequence, on one process of one thread, and on two processes of one
    thread each: replicas, divided products, a shared cache, and a pipeline with two batches in flight. Logits are
    compared with those of one process, and bytes with the formulas. This needs the extra `parallel`, and 15 GB of
    memory for GPT-2 with two sequences of 100K tokens.

    \b
    Examples:
      scripts/bench parallel
      scripts/bench parallel layer --cached 1024,8192 --batch 4 --json
    """
    from scripts.lib.parallel import LONGEST, SHAPES, Study, compiled_file

    names = models or _MODELS[:2]
    for name in names:
        most = min(LONGEST, SHAPES[name].positions - 1)
        if cached[-1] > most:
            raise click.BadParameter(f"{name} has at most {most} cached tokens.", param_hint="--cached")
    results = []
    for name in names:
        whole, divided = (compiled_file(name, folder, batches[-1], db, count) for count in (1, 2))
        for batch in batches:
            rows = []
            for each in cached:
                rows.append({"cached": each, **Study(whole, divided, batch, each, rounds).run()})
                say(f"{name} with {batch} x {each} cached tokens: done")
            results.append({"model": name, "batch": batch, "rows": rows})
    found = {**head(1, rounds=rounds), "results": results}
    parts = (part for each in results for part in (_title(each), _table(each)))
    show_results(found, parts, as_json=as_json)


def _title(result: dict[str, Any]) -> str:
    return f"\n{result['model']}: {result['batch']} sequences, a token of each; ms an iteration"


def _table(result: dict[str, Any]) -> Table:
    titles = "cached tokens, one process, data x 2, tensor x 2, cache x 2, pipeline x 2".split(", ")
    titles += "error of cache, of tensor, bytes of cache, derived, bytes of tensor, derived".split(", ")
    return table(
        titles,
        [
            (
                f"{row['cached']:,}",
                *(f"{row[f'{kind}_ms'] or float('nan'):.2f}" for kind in _TIMES),
                *(f"{row[f'{kind}_error']:.1e}" for kind in ("cache", "tensor")),
                *(f"{row[f'{kind}_{what}']:,}" for kind in ("cache", "tensor") for what in ("bytes", "derived_bytes")),
            )
            for row in result["rows"]
        ],
    )
