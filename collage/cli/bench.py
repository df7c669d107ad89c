"""The command ``collage bench``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from collage.cli.completion import MODULES, complete_engines, complete_files
from collage.cli.console import print_json, print_table, say
from collage.cli.errors import measurements_survive
from collage.cli.options import (
    DB_OPTION,
    JSON_OPTION,
    MODEL_ARGUMENT,
    PATH,
    QUIET_OPTION,
    SEED_OPTION,
    SHAPES_OPTION,
    THREADS_OPTION,
    TRUST_OPTION,
    Count,
    Seconds,
    flag,
    once_each,
    option,
    parse_counts,
    parse_names,
    refuse_useless,
)
from collage.core.extras import need_compiler


@click.command()
@MODEL_ARGUMENT
@option(
    "--engines",
    type=parse_names,
    shell_complete=complete_engines,
    metavar="A,B",
    help="Compare with these only. Default: all that are installed.",
)
@SHAPES_OPTION
@option(
    "--rows",
    type=parse_counts,
    metavar="1,100,10000",
    help="Numbers of rows, with a race for each, for a model that takes any number of them. Default: 1000.",
)
@THREADS_OPTION
@option(
    "--rounds",
    type=Count(min=1),
    default=30,
    metavar="R",
    help="Rounds; in each, every contender gets a short burst of runs.",
)
@option(
    "--module",
    metavar="OUT.collage",
    type=PATH,
    shell_complete=complete_files(MODULES),
    help="Use this compiled module of the model instead of compiling it.",
)
@option(
    "--budget",
    type=Seconds(),
    metavar="SECONDS",
    help="Time for the compile, as in `collage compile`. Default: as long as it takes, 10 with --quick.",
)
@flag("--quick", help="Compile with few candidates and few samples.")
@TRUST_OPTION
@DB_OPTION
@SEED_OPTION
@JSON_OPTION
@QUIET_OPTION
def bench(
    model: Path,
    engines: tuple[str, ...] | None,
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    rows: tuple[int, ...] | None,
    threads: int | None,
    rounds: int,
    module: Path | None,
    budget: float | None,
    quick: bool,
    trust: bool,
    db: Path | None,
    seed: int,
    as_json: bool,
    quiet: bool,
) -> None:
    """Compare Collage with each installed engine on the whole model.

    Every contender runs the original model file in a process of its own, with the same threads, inputs and
    precision (float32). They run in short bursts, one after another, while the others sleep. Outputs are
    compared with ONNX Runtime's. A model that LightGBM, XGBoost or CatBoost has saved is compared with its
    library, too.

    \b
    Examples:
      collage bench model.onnx
      collage bench model.onnx --budget 60
      collage bench model.onnx --engines onnxruntime --threads 1 --rounds 50
      collage bench model.onnx --module model.collage --json
      collage bench booster.txt --rows 1,100,10000
    """
    fixed = once_each("--shape", shapes)
    if module is not None:
        for name in ("--db", "--budget", "--quick"):
            refuse_useless(name, "--module", "nothing is compiled, so that nothing is measured that is kept")
    need_compiler()
    with measurements_survive():
        from collage.bench.engines import Contest
        from collage.bench.engines import bench as compare
        from collage.report.progress_display import display

        counts: dict[str, Any] = {"rounds": rounds, "rows": rows or ()}
        contest = Contest(shapes=fixed, threads=threads, engines=engines, seed=seed, trust=trust, **counts)
        with display(not quiet) as progress:
            found = compare(model, contest, db=db, module=module, budget_s=budget, quick=quick, progress=progress)
    if as_json:
        print_json(found)
        return
    from collage.report.best_so_far import FINISHED, ended_words
    from collage.runtime.inputs import shape_arguments

    say(f"{found['model']}, {found['threads']} threads, {found['rounds']} rounds")
    if found["shapes_of"] is not None:
        given = shape_arguments([*found["shapes"]], [*found["shapes"].values()])
        say(f"inputs {given}, as in {found['shapes_of']}")
    races = found.get("rows", {"": found})
    for count, of_count in races.items():
        if count:
            say(f"\n{count} rows" if int(count) > 1 else "\none row")
        _show_race(of_count)
    if found["ended"] != FINISHED:
        say(f"Collage's compile was stopped: {ended_words(found['ended'], found['budget_s'])}.")
    for name, reason in {n: r for each in races.values() for n, r in each["failed"].items()}.items():
        say(f"{name} could not run it: {reason}")
    for count, of_count in races.items():
        if of_count["best_engine"] is not None:
            of_rows = f"{count} rows: " if int(count or 1) > 1 else "One row: " if count else ""
            say(of_rows + conclusion({**of_count, "rounds": found["rounds"]}))


def _show_race(found: Mapping[str, Any]) -> None:
    """Print the table of the contenders, the fastest first."""
    from collage.report.show import duration, share_words

    rows = []
    for name, timing in sorted(found["engines"].items(), key=lambda item: item[1]["median_us"]):
        absolute, relative = timing["max_abs_error"], timing["max_relative_error"]
        times = (duration(timing[key]) for key in ("median_us", "noise_us", "min_us", "p90_us"))
        ratio = f"{found['ratios'][name]['median']:.2f}x" if name in found["ratios"] else ""
        errors = ("", "") if absolute is None else (f"{absolute:.0e}", share_words(absolute, relative))
        rows.append((name, *times, ratio, *errors))
    titles = "engine", "median", "+-", "min", "p90", "against Collage", "max error", "of its scale"
    print_table(titles, rows, right=titles[1:])


def conclusion(found: Mapping[str, Any]) -> str:
    """The verdict in words, with the interval that it follows from."""
    from collage.bench.race import AS_FAST, SURE_ROUNDS, UNSURE

    best, ratio = found["best_engine"], found["ratios"][found["best_engine"]]
    between = f"{ratio['low']:.3f}x to {ratio['high']:.3f}x"
    if found["rounds"] < SURE_ROUNDS:
        between += f" in {found['rounds']} rounds; {SURE_ROUNDS} or more make it sure"
    if found["verdict"] == UNSURE:
        return (
            f"The machine is too noisy to say whether Collage is as fast as the best engine here, {best}: {between}. "
            "Give more --rounds, or let nothing else run."
        )
    if found["verdict"] == AS_FAST:
        return f"Collage is as fast as the best engine here, {best}, within the noise ({between})."
    return f"Collage is {found['verdict']} here, {ratio['median']:.2f}x as fast as the best engine, {best} ({between})."
