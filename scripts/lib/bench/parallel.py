"""The command ``scripts/bench parallel``."""

from __future__ import annotations

from pathlib import Path

import click

from collage.cli.console import say
from collage.cli.options import DB_OPTION, JSON_OPTION
from scripts.lib.bench.options import rounds_option
from scripts.lib.bench.output import head, show

_MODELS = ("layer", "gpt2", "tiny")


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
@click.option(
    "--processes",
    type=_numbers,
    default="2,4,8",
    show_default=True,
    metavar="N,N",
    help="Numbers of processes. Times of 2 are measured, and those of all are modelled.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default="models",
    show_default=True,
    metavar="DIR",
    help="Folder of the compiled decoders, which are made when they are missing.",
)
@rounds_option(7)
@DB_OPTION
@JSON_OPTION
def command(
    *,
    models: tuple[str, ...],
    cached: tuple[int, ...],
    batches: tuple[int, ...],
    processes: tuple[int, ...],
    folder: Path,
    rounds: int,
    db: Path | None,
    as_json: bool,
) -> None:
    """Compare data, tensor, pipeline and Cache Parallelism at decoding with many cached tokens.

    The models are one layer of Llama-7B and GPT-2 124M with a longer table of positions, both with random weights in
    float32. Each iteration computes a token of each sequence. Measured are one process of one thread, and two processes
    of one thread each on this machine: replicas, divided products, a shared cache, and a pipeline with two batches in
    flight. Logits are compared with those of one process, and bytes with the formulas. What data, tensor and
    Cache Parallelism take on machines of their own is modelled, from the times of one process and of messages.
    This needs the extra `parallel`, and 15 GB of memory for GPT-2 with two sequences of 100K tokens.

    \b
    Examples:
      scripts/bench parallel
      scripts/bench parallel layer --cached 1024,8192 --batch 4 --json
    """
    from scripts.lib.parallel.models import LONGEST, SHAPES, compiled_file
    from scripts.lib.parallel.study import Study, run
    from scripts.lib.parallel.tables import tables
    from scripts.lib.parallel.wire import measure_wire

    names = models or _MODELS[:2]
    for name in names:
        most = min(LONGEST, SHAPES[name].positions - 1)
        if cached[-1] > most:
            raise click.BadParameter(f"{name} has at most {most} cached tokens.", param_hint="--cached")
    wire = measure_wire()
    results = []
    for name in names:
        path, divided = (compiled_file(name, folder, batches[-1], db, count) for count in (1, 2))
        for batch in batches:
            study = Study(path, divided, batch, cached, rounds, processes)
            results.append(run(study, wire, lambda text: say(text, err=True)))
    found = {**head(1, rounds=rounds), "wire": vars(wire), "results": results}
    show(found, [part for each in results for part in tables(each)], as_json=as_json)
