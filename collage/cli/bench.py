"""The command ``collage bench``."""

from __future__ import annotations

from pathlib import Path

import click

from collage.cli.console import print_json, print_rich, say
from collage.cli.errors import measurements_survive
from collage.cli.options import (
    DB_OPTION,
    JSON_OPTION,
    MODEL_ARGUMENT,
    QUIET_OPTION,
    SEED_OPTION,
    SHAPES_OPTION,
    THREADS_OPTION,
    Count,
    Seconds,
    once_each,
    parse_names,
)
from collage.cli.unused import refuse_useless


@click.command()
@MODEL_ARGUMENT
@click.option(
    "--engines",
    type=parse_names,
    metavar="A,B",
    help="Compare with these only. Default: all that are installed.",
)
@SHAPES_OPTION
@THREADS_OPTION
@click.option(
    "--rounds",
    type=Count(min=1),
    default=30,
    show_default=True,
    metavar="R",
    help="Rounds; in each, every contender gets a short burst of runs.",
)
@click.option(
    "--module",
    metavar="OUT.collage",
    type=click.Path(path_type=Path),
    help="Use this compiled module of the model instead of compiling it.",
)
@click.option(
    "--budget",
    type=Seconds(),
    metavar="SECONDS",
    help="Time for the compile, as in `collage compile`. Default: as long as it takes, 10 with --quick.",
)
@click.option("--quick", is_flag=True, help="Compile with few candidates and few samples.")
@DB_OPTION
@SEED_OPTION
@JSON_OPTION
@QUIET_OPTION
def bench(
    model: Path,
    engines: tuple[str, ...] | None,
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    threads: int | None,
    rounds: int,
    module: Path | None,
    budget: float | None,
    quick: bool,
    db: Path | None,
    seed: int,
    as_json: bool,
    quiet: bool,
) -> None:
    """Compare Collage with each installed engine on the whole model.

    Every contender runs the original model file in a process of its own, with the same threads, inputs and
    precision (float32). They run in short bursts, one after another, while the others sleep. Outputs are
    compared with ONNX Runtime's.

    \b
    Examples:
      collage bench model.onnx
      collage bench model.onnx --budget 60
      collage bench model.onnx --engines onnxruntime --threads 1 --rounds 50
      collage bench model.onnx --module model.collage --json
    """
    fixed = once_each("--shape", shapes)
    if module is not None:
        for option in ("--db", "--budget", "--quick"):
            refuse_useless(
                option, "--module", "nothing is compiled, so that nothing is measured that is kept"
            )
    with measurements_survive():
        from collage.bench.engines import Contest
        from collage.bench.engines import bench as compare
        from collage.report.progress_display import display

        contest = Contest(shapes=fixed, threads=threads, engines=engines, rounds=rounds, seed=seed)
        with display(not quiet) as progress:
            found = compare(
                model, contest, db=db, module=module, budget_s=budget, quick=quick, progress=progress
            )
    if as_json:
        print_json(found)
        return
    from rich.text import Text

    from collage.report.best_so_far import FINISHED, ended_words
    from collage.report.show import duration
    from collage.report.show_terminal import plain_table

    table = plain_table()
    table.add_column("engine")
    for title in ("median", "+-", "min", "p90", "against Collage", "max relative error"):
        table.add_column(title, justify="right")
    ours = found["engines"]["collage"]["median_us"]
    for name, timing in sorted(found["engines"].items(), key=lambda item: item[1]["median_us"]):
        error = timing["max_relative_error"]
        table.add_row(
            Text(name),
            *(duration(timing[key]) for key in ("median_us", "noise_us", "min_us", "p90_us")),
            f"{timing['median_us'] / ours:.2f}x",
            "" if error is None else f"{error:.1g}",
        )
    say(f"{found['model']}, {found['threads']} threads, {found['rounds']} rounds")
    print_rich(table)
    if found["ended"] != FINISHED:
        say(f"Collage's compile was stopped: {ended_words(found['ended'], found['budget_s'])}.")
    for name, reason in found["failed"].items():
        say(f"{name} could not run it: {reason}")
    speedup, best = found["speedup_vs_best_engine"], found["best_engine"]
    if found["within_noise"]:
        say(f"Collage is as fast as the best engine here, {best}, within the noise ({speedup:.2f}x).")
    elif best is not None:
        say(f"Collage is {speedup:.2f}x as fast as the best engine here, {best}.")
