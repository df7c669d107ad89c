"""The command ``scripts/bench native-kernels``."""

from __future__ import annotations

import math
from typing import Any

import click

from collage.cli.console import print_json, say
from collage.cli.options import JSON_OPTION
from scripts.lib.bench.options import only_option, seconds_option


@click.command("native-kernels")
@click.option("--threads", type=click.IntRange(min=1), default=2, show_default=True, metavar="N")
@seconds_option(0.5, "Measuring time of a case.")
@only_option("cases")
@click.option("--all", "every", is_flag=True, help="Print every variant.")
@JSON_OPTION
def command(threads: int, seconds: float, only: str, every: bool, as_json: bool) -> None:
    """Compare Collage's own convolutions with oneDNN's.

    Each case is a convolution with bias and relu. All variants of both, on Collage's team of threads, take turns in
    one process, a few calls at a time with hot weights, after a comparison of their results. Times are medians in
    microseconds. The ratio is oneDNN's best over our best: above 1, ours is faster.

    \b
    Examples:
      scripts/bench native-kernels
      scripts/bench native-kernels --only mobilenet --threads 1 --all
    """
    from scripts.lib.kernels.native import CASES, race

    rows = [race(each, threads, seconds) for each in CASES if only in each.name]
    if as_json:
        print_json({"threads": threads, "cases": rows})
        return
    say(f"{threads} thread(s), median us")
    say(f"{'case':42}{'ours':>8}{'GFLOP/s':>9}  {'variant':32}{'oneDNN':>8}  {'variant':32}{'ratio':>6}")
    ratios = []
    for row in rows:
        (ours, mine), (peer, its) = best(row, "native"), best(row, "onednn")
        ratios.append(peer / ours)
        rate = row["flop"] / ours / 1e3
        say(f"{row['case']:42}{ours:8.1f}{rate:9.0f}  {mine:32}{peer:8.1f}  {its:32}{peer / ours:6.2f}")
        if every:
            for name, us in row["us"].items():
                say(f"    {name:60}{us:8.1f}")
    if ratios:
        say(f"geometric mean {math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f}")


def best(row: dict[str, Any], backend: str) -> tuple[float, str]:
    """Microseconds and name of the backend's fastest variant; NaN where it has none."""
    found = [(us, name.split(": ", 1)[1]) for name, us in row["us"].items() if name.startswith(f"{backend}:")]
    return min(found, default=(math.nan, ""))
